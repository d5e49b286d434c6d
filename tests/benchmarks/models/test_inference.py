"""The inference benchmark on a small model."""

import pytest

from benchmarks.models.inference import Inference, benchmark_model


@pytest.mark.usefixtures("fixed_machine")
@pytest.mark.slow
def test_every_mode_has_a_row(config, small):
    modes = (
        ("torchvision", "float32"),
        ("detlite", "float32"),
        ("detlite", "bfloat16"),
        ("detlite", "optimize float32"),
    )
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), 2, (64, 96), 4)
    rows = list(benchmark_model(inference, 1, modes))
    assert tuple((row.library, row.mode) for row in rows) == modes
    assert rows[1].ratio == pytest.approx(rows[0].seconds / rows[1].seconds)
    assert rows[2].ratio is None  # torchvision's bfloat16 was not measured
    for row in rows:
        assert row.gflop > 0.1
        assert row.peak_fraction == pytest.approx(row.gflop / row.seconds)
        assert row.memory_mb == 7.0
        assert row.phases.keys() >= {"other", "inputs", "backbone", "RPN", "box head", "paste"}
