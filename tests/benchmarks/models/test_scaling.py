"""What is varied, and what the rows say of it, with calls that take as long as they are told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.models import scaling
from benchmarks.models.inference import Inference
from benchmarks.models.scaling import AXES, benchmark_scaling, plot_scaling
from benchmarks.models.training import Training

SETTINGS = {
    "short side": lambda one: one.size,
    "proposals": lambda one: one.opts[1::2],
    "classes": lambda one: one.opts[1::2],
    "batch": lambda one: one.batch,
    "objects": lambda one: one.objects,
}


@pytest.fixture
def asked(monkeypatch):
    """The settings that calls were made of; a call of n images takes n (detlite) or 4 n seconds."""
    settings = []

    def make(self, library, dtype):
        assert dtype == "float32"
        if library == "detlite":
            settings.append(self)
        return (library, self.batch)

    monkeypatch.setattr(Inference, "call", make)
    monkeypatch.setattr(Training, "step", make)
    monkeypatch.setattr(scaling, "flops", lambda call: 6e9 * call[1])

    def in_turn(calls, turns, device, clock):
        return {n: len(settings) * b * (1 if n == "detlite" else 4) for n, b in calls.values()}

    monkeypatch.setattr(scaling, "in_turn", in_turn)
    return settings


def test_each_axis_is_varied_alone(asked):
    inference = Inference(Path(), (), size=(100, 150))
    rows = list(benchmark_scaling(inference, Training(Path(), batch=1)))
    assert [(row.axis, row.value) for row in rows] == [
        (axis, value) for axis, values in AXES.items() for value in values
    ]
    found = [SETTINGS[row.axis](one) for row, one in zip(rows, asked, strict=True)]
    wanted = {
        "short side": lambda value: (value, value * 3 // 2),
        "proposals": lambda value: (value,) * 3,
        "classes": lambda value: (value + 1,),
        "batch": lambda value: value,
        "objects": lambda value: value,
    }
    assert found == [wanted[row.axis](row.value) for row in rows]
    # All that is not varied is as it was.
    assert all(one.size == (100, 150) for row, one in zip(rows[5:18], asked[5:18], strict=True))


def test_rows_are_of_an_image_and_of_the_first_value(asked, tmp_path):
    axes = {"batch": (2, 8), "proposals": (10, 20)}
    rows = list(benchmark_scaling(Inference(Path()), Training(Path()), axes))
    assert [row.detlite_ms for row in rows] == [1e3, 2e3, 3e3, 4e3]
    assert [row.ratio for row in rows] == [4, 4, 4, 4]
    assert [row.gflop for row in rows] == [6, 6, 6, 6]
    assert [row.growth for row in rows] == pytest.approx([1, 2, 1, 4 / 3])
    plot_scaling(rows, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.width > 1.5 * picture.height
