"""Collect results of images and of processes."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from detlite.distributed import process_group
from detlite.evaluation import Results, coco_results
from detlite.evaluation.gather import ResultsCollector, gather_results
from detlite.structures.masks.formats import encode_bitmap


def image_results(image_id: int, count: int, **options: bool) -> Results:
    """Make detections of one image, with masks and keypoints if the options are set."""
    boxes = torch.arange(4.0).repeat(count, 1) + image_id
    scores = torch.arange(count) / 8
    masks = [encode_bitmap(np.eye(3 + n)) for n in range(count)] if options.get("masks") else None
    points = torch.rand(count, 5, 3) if options.get("keypoints") else None
    return coco_results(image_id, boxes, scores, [2] * count, masks, points)


@pytest.mark.parametrize("options", [{}, {"masks": True}, {"masks": True, "keypoints": True}])
def test_images_are_concatenated(options: dict[str, bool]) -> None:
    parts = [image_results(n, count, **options) for n, count in enumerate((2, 0, 3))]
    collector = ResultsCollector()
    for part in parts:
        collector.add(part)
    collected = collector.collected()
    assert list(collected.to_coco()) == [row for part in parts for row in part.to_coco()]
    assert collected.scores.dtype == np.float32
    assert gather_results(collected) is collected


@pytest.mark.parametrize("options", [{}, {"masks": True, "keypoints": True}])
def test_no_detections(options: dict[str, bool]) -> None:
    collector = ResultsCollector()
    assert len(collector.collected()) == 0
    collector.add(image_results(1, 0, **options))
    assert len(collector.collected()) == 0
    assert (collector.collected().masks is not None) == bool(options)


COUNTS = [  # for each call and rank, the images with their numbers of detections
    [[(0, 2), (3, 1)], [(1, 3)], [(2, 1)]],
    [[], [(1, 2)], [(2, 0)]],
    [[(0, 0)], [], []],
]


def gather_in_process(number: int, port: int, queue: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3",
                   "RANK": str(number), "LOCAL_RANK": str(number)}  # fmt: skip
    with process_group("cpu"):
        for counts in COUNTS:
            collector = ResultsCollector()
            for image, count in counts[number]:
                collector.add(image_results(image, count, masks=True))
            gathered = gather_results(collector.collected())
            queue.put((number, None if gathered is None else list(gathered.to_coco())))


@pytest.mark.slow
def test_three_processes(free_port: Callable[[], int]) -> None:
    """Rank 0 gets all results by rank, also if a process has no detections or no images."""
    context = multiprocessing.get_context("fork")  # the processes need not import torch again
    queue, port = context.Queue(), free_port()
    processes = [
        context.Process(target=gather_in_process, args=(number, port, queue), daemon=True)
        for number in range(3)
    ]
    for process in processes:
        process.start()
    gathered = [queue.get(timeout=120) for _ in range(3 * len(COUNTS))]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [rows for number, rows in gathered if number] == [None] * 6
    assert [rows for number, rows in gathered if number == 0] == [
        [
            row
            for images in call
            for image, count in images
            for row in image_results(image, count, masks=True).to_coco()
        ]
        for call in COUNTS
    ]
