"""The training benchmark on a small model."""

import pytest

from benchmarks.models.training import Training, benchmark_train
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
