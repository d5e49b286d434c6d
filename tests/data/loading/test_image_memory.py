"""Decoded images in shared memory: bounded, copied, and shared by processes."""

import multiprocessing

import pytest
import torch

from detlite.data.loading.image_memory import ImageMemory, build_image_memory

SIZES = [(4, 5), (6, 2), (8, 8)]


def image(height, width):
    """A decoded image, whose rows are in order of memory."""
    return torch.randint(256, (height, width, 3), dtype=torch.uint8).permute(2, 0, 1)


def unexpected():
    raise AssertionError("decoded again")


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (59, 0), (60, 1), (96, 2), (10**6, 3)])
def test_images_that_fit_are_decoded_once(limit, count):
    memory = ImageMemory(SIZES, 3, limit)
    assert memory.count == count
    assert memory.size == [0, 60, 96, 288][count]
    images = [image(*size) for size in SIZES]
    for index, expected in enumerate(images):
        assert memory.get(index, lambda expected=expected: expected) is expected
        if index < count:
            memory.get(index, unexpected).zero_()  # a copy
            assert torch.equal(memory.get(index, unexpected), expected)
        else:
            assert memory.get(index, lambda expected=expected: expected) is expected


def test_an_image_read_at_a_smaller_size_is_kept():
    memory, smaller = ImageMemory(SIZES, 3, 10**6), image(4, 4)
    memory.get(2, lambda: smaller)
    assert torch.equal(memory.get(2, unexpected), smaller)


def test_processes_started_by_fork_share_the_images():
    memory, images = ImageMemory(SIZES, 3, 10**6), [image(*size) for size in SIZES]
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=lambda: memory.get(1, lambda: images[1]))
    process.start()
    process.join()
    assert torch.equal(memory.get(1, unexpected), images[1])


@pytest.mark.parametrize(("workers", "method"), [(0, "spawn"), (2, "fork"), (2, "spawn")])
def test_the_log_states_what_is_kept(tiny_config, monkeypatch, caplog, workers, method):
    caplog.set_level("INFO")
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: method)
    cfg = tiny_config("DATALOADER.CACHE", 0.5, "DATALOADER.NUM_WORKERS", workers)
    memory = build_image_memory(cfg, [(10_000, 10_000)] * 3, 3)
    (record,) = caplog.records
    if workers and method == "spawn":
        assert memory is None
        assert "DATALOADER.CACHE has no effect with loader processes" in record.message
    else:
        assert memory.count == 1
        assert "1 of 3 images, 0.28 of 0.84 GiB, stay decoded" in record.message
