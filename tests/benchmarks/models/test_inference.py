from __future__ import annotations

import pytest

from benchmarks.models.inference import Inference, benchmark_model


@pytest.mark.usefixtures("no_machine")
def test_every_way_is_a_row(config, small):
    ways = (
        ("torchvision", "float32"),
        ("detlite", "float32"),
        ("detlite", "bfloat16"),
        ("detlite", "optimize float32"),
    )
    inference = Inference(config, (*small, "MODEL.DEVICE", "cpu"), 2, (64, 96), 4)
    rows = list(benchmark_model(inference, 1, ways))
    assert tuple((row.library, row.way) for row in rows) == ways
    assert rows[1].ratio == pytest.approx(rows[0].seconds / rows[1].seconds)
    assert rows[2].ratio is None  # torchvision's bfloat16 was not measured
    for row in rows:
        assert row.gflop > 0.1
        assert row.peak_share == pytest.approx(row.gflop / row.seconds)
        assert row.memory_mb == 7.0
        assert row.phases.keys() >= {"other", "inputs", "backbone", "RPN", "box head", "paste"}
