"""Test the plots of losses and metrics, and the sheet of detections."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from detlite.apps.drawing.html_page import join_images
from detlite.apps.report.run_drawings import plot_metrics
from detlite.data import DataError

METRICS = {
    "bbox": {"AP": 0.25, "AP50": 0.5}, "segm": {"AP": None, "AP50": None},
    "voc": {"AP50": 0.5, "AP50_07": 0.25}, "loss": {"total": 0.5},
    "box_proposal": {"AR@100": 0.75, "ARl@100": None, "AR@1000": 1.0},
}  # fmt: skip
LINES = [
    {"iteration": 1, "loss_mask": 1.5, "loss": 2.0, "lr": 0.1},
    {"iteration": 2, "loss_mask": 0.5, "loss": 1.0, "lr": 0.1},
    {"iteration": 4, "evaluation": {"val": METRICS, "other": {"bbox": {"AP": 0.75}}}},
]
LOSSES = {
    "loss": [[1, 2], [2, 1]], "loss_mask": [[1, 2], [1.5, 0.5]], "val/loss/total": [[4], [0.5]],
}  # fmt: skip
AGAIN = [*LINES, {"iteration": 6, "evaluation": {"val": METRICS}}]
CURVES = LOSSES | {
    "val/loss/total": [[4, 6], [0.5, 0.5]],
    "val/bbox/AP: 25.0": [[4, 6], [25, 25]], "val/bbox/AP50: 50.0": [[4, 6], [50, 50]],
    "val/voc/AP50: 50.0": [[4, 6], [50, 50]], "val/voc/AP50_07: 25.0": [[4, 6], [25, 25]],
    "val/box_proposal/AR@100: 75.0": [[4, 6], [75, 75]],
    "val/box_proposal/AR@1000: 100.0": [[4, 6], [100, 100]],
}  # fmt: skip


def plot(folder: Path, text: str) -> np.ndarray:
    (folder / "metrics.jsonl").write_text(text)
    plot_metrics(folder / "metrics.jsonl", folder / "curves.png")
    return np.asarray(Image.open(folder / "curves.png"))


@pytest.mark.parametrize(("lines", "expected"), [([], {}), (LINES, LOSSES), (AGAIN, CURVES)])
def test_curves(lines, expected, tmp_path, monkeypatch):
    """Metrics that were measured once are no curves."""
    drawn, draw = {}, Axes.plot

    def record(self: Axes, x: Any, y: Any, *style: Any, label: str, **styles: Any) -> None:
        drawn[label] = [list(x), list(y)]
        draw(self, x, y, *style, label=label, **styles)

    monkeypatch.setattr(Axes, "plot", record)
    assert (plot(tmp_path, "".join(json.dumps(line) + "\n" for line in lines)) < 250).any()
    assert drawn == expected


@pytest.mark.parametrize("bad", ["{", "[]", '{"loss": 1}', "3"])
def test_bad_line(bad, tmp_path):
    with pytest.raises(DataError, match=r"metrics\.jsonl: (cannot be read|a line has no 'it)"):
        plot(tmp_path, f'{{"iteration": 1}}\n{bad}\n')


def test_joined_images() -> None:
    row = [Image.new("RGB", (196, 100)), Image.new("RGB", (150, 60), "red")]
    joined = join_images([row, row[1:]], gap=8)
    assert joined.size == (196 + 8 + 150, 100 + 8 + 60)
    black, red, white = (0, 0, 0), (255, 0, 0), (255, 255, 255)
    for at, color in (((20, 90), black), ((204, 50), red), ((204, 70), white), ((20, 120), red)):
        assert joined.getpixel(at) == color
