"""The scaling benchmark, with calls of known duration."""

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.models import scaling
from benchmarks.models.inference import Inference
from benchmarks.models.scaling import AXES, benchmark_scaling, plot_scaling
from benchmarks.models.training import Training

VARIED = {
    "short side": lambda one: one.size,
    "proposals": lambda one: one.opts[1::2],
    "classes": lambda one: one.opts[1::2],
    "batch": lambda one: one.batch,
    "objects": lambda one: one.objects,
}


@pytest.fixture
def settings(monkeypatch):
    """The settings of all calls. The k-th call takes k (detlite) or 4 k seconds per image."""
    recorded = []

    def make(self, library, dtype):
        assert dtype == "float32"
        if library == "detlite":
            recorded.append(self)
        return (library, self.batch)

    monkeypatch.setattr(Inference, "call", make)
    monkeypatch.setattr(Training, "step", make)
    monkeypatch.setattr(scaling, "count_flops", lambda call: 6e9 * call[1])

    def medians(calls, turns, device, clock):
        return {n: len(recorded) * b * (1 if n == "detlite" else 4) for n, b in calls.values()}

    monkeypatch.setattr(scaling, "interleaved_medians", medians)
    return recorded


def test_one_quantity_is_varied_at_a_time(settings):
    inference = Inference(Path(), (), size=(100, 150))
    rows = list(benchmark_scaling(inference, Training(Path(), batch=1)))
    assert [(row.axis, row.value) for row in rows] == [
        (axis, value) for axis, values in AXES.items() for value in values
    ]
    values = [VARIED[row.axis](one) for row, one in zip(rows, settings, strict=True)]
    expected = {
        "short side": lambda value: (value, value * 3 // 2),
        "proposals": lambda value: (value,) * 3,
        "classes": lambda value: (value + 1,),
        "batch": lambda value: value,
        "objects": lambda value: value,
    }
    assert values == [expected[row.axis](row.value) for row in rows]
    # Other settings do not change.
    assert all(one.size == (100, 150) for row, one in zip(rows[5:18], settings[5:18], strict=True))


@pytest.mark.usefixtures("settings")
def test_times_per_image_and_growth(tmp_path):
    axes = {"batch": (2, 8), "proposals": (10, 20)}
    rows = list(benchmark_scaling(Inference(Path()), Training(Path()), axes))
    assert [row.detlite_ms for row in rows] == [1e3, 2e3, 3e3, 4e3]
    assert [row.ratio for row in rows] == [4, 4, 4, 4]
    assert [row.gflop for row in rows] == [6, 6, 6, 6]
    assert [row.growth for row in rows] == pytest.approx([1, 2, 1, 4 / 3])
    plot_scaling(rows, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 1.5 * image.height
