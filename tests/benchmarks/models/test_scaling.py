"""The scaling benchmark, with calls of known duration."""

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.models import scaling
from benchmarks.models.inference import Inference
from benchmarks.models.scaling import AXES, benchmark_scaling, plot_scaling
from benchmarks.models.training import Training

# What an axis varies in the settings, and the expected setting for a value.
VARIED = {
    "short side": (lambda one: one.size, lambda value: (value, value * 3 // 2)),
    "proposals": (lambda one: one.opts[1::2], lambda value: (value,) * 3),
    "classes": (lambda one: one.opts[1::2], lambda value: (value + 1,)),
    "batch": (lambda one: one.batch, lambda value: value),
    "objects": (lambda one: one.objects, lambda value: value),
}


def test_one_quantity_is_varied_at_a_time(monkeypatch, tmp_path):
    settings = []

    def make(self, library, dtype):
        assert dtype == "float32"
        if library == "detlite":
            settings.append(self)
        return (library, self.batch)

    def medians(calls, turns, device, clock):
        """The k-th call takes k (detlite) or 4 k seconds per image."""
        return {n: len(settings) * b * (1 if n == "detlite" else 4) for n, b in calls.values()}

    monkeypatch.setattr(Inference, "call", make)
    monkeypatch.setattr(Training, "step", make)
    monkeypatch.setattr(scaling, "count_flops", lambda call: 6e9 * call[1])
    monkeypatch.setattr(scaling, "interleaved_medians", medians)
    inference = Inference(Path(), (), size=(100, 150))
    rows = list(benchmark_scaling(inference, Training(Path(), batch=1)))
    assert [(row.axis, row.value) for row in rows] == [
        (axis, value) for axis, values in AXES.items() for value in values
    ]
    for row, one in zip(rows, settings, strict=True):
        varied, expected = VARIED[row.axis]
        assert varied(one) == expected(row.value)
        assert row.axis == "short side" or not isinstance(one, Inference) or one.size == (100, 150)

    settings.clear()
    axes = {"batch": (2, 8), "proposals": (10, 20)}
    rows = list(benchmark_scaling(inference, Training(Path()), axes))
    assert [row.detlite_ms for row in rows] == [1e3, 2e3, 3e3, 4e3]
    assert [row.growth for row in rows] == pytest.approx([1, 2, 1, 4 / 3])
    assert {(row.ratio, row.gflop) for row in rows} == {(4, 6)}
    plot_scaling(rows, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 1.5 * image.height
