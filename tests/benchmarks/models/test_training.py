"""The training benchmark on a small model."""

import json
from functools import partial

import pytest
import torch

from benchmarks.data.loading import generated_dataset
from benchmarks.models.images import to_torchvision_batch
from benchmarks.models.training import Training, benchmark_train, write_trace
from benchmarks.roofline import count_flops
from detlite.modeling.optimize_for_training import use_static_shapes


@pytest.fixture
def training(config, small):
    return Training(config, small, batch=1, size=(64, 96), objects=3)


@pytest.mark.usefixtures("fixed_machine")
@pytest.mark.slow
def test_rows_and_phases_of_both_libraries(training):
    detlite, torchvision = benchmark_train(training, 1, dtypes=("bfloat16",))
    assert (detlite.library, torchvision.library) == ("detlite", "torchvision")
    assert detlite.ratio == pytest.approx(torchvision.seconds / detlite.seconds)
    assert detlite.gflop == pytest.approx(torchvision.gflop, rel=0.02)
    for row in (detlite, torchvision):
        assert row.peak_fraction == pytest.approx(row.gflop / row.seconds)
        assert row.phases.keys() >= {
            "data", "inputs", "backbone", "RPN", "matching", "proposals", "box head", "mask head",
            "mask targets", "backward", "optimizer", "other",
        }  # fmt: skip


@pytest.mark.slow
def test_static_shapes_add_few_operations(config, small, monkeypatch):
    opts = ("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 256, "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (64,))
    training = Training(config, (*small, *opts), batch=2, size=(128, 192), objects=20)
    reference = count_flops(training.step("torchvision", "float32"))
    monkeypatch.setattr("benchmarks.models.training.optimize_for_training", use_static_shapes)
    assert count_flops(training.step("detlite", "float32")) <= 1.1 * reference


def test_real_images_are_loaded_in_every_step(config, small, tmp_path, monkeypatch):
    dataset = generated_dataset(tmp_path, 4, (48, 64))
    monkeypatch.setattr("benchmarks.models.training.build_train_dataset", lambda cfg: dataset)
    sizes = ("INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MAX_SIZE_TRAIN", 96)
    opts = (*small, *sizes, "MODEL.CONVENTION_OVERRIDE", ("mask_targets=binary",))
    training = Training(config, opts, real=True)
    batches = training.batches(training.cfg(), lambda batch: batch)
    reference = training.batches(training.cfg(), partial(to_torchvision_batch, device="cpu"))
    (images, targets), (again, _) = next(batches), next(batches)
    floats, bitmaps = next(reference)
    assert len(images) == 2
    for image, same, other in zip(images, again, floats, strict=True):
        assert torch.equal(image, same)
        torch.testing.assert_close(other * 255, image.float())
    assert [len(target["masks"]) for target in targets] == [10, 10]
    assert [target["masks"].shape[0] for target in bitmaps] == [10, 10]


def test_trace_contains_the_phases(training, tmp_path):
    file = tmp_path / "trace.json"
    write_trace(training, "float32", file)
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert names >= {"backbone", "matching", "backward", "optimizer", "aten::convolution"}
