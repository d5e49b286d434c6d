"""Test the plots of losses and metrics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from detlite.apps.drawing.run_drawings import plot_metrics
from detlite.data import DataError


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


class TestPlotMetrics:
    def write(self, tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def test_losses_left_and_metrics_right(self, tmp_path):
        training = [
            {"iteration": i, "loss": 2 / i, "loss_mask": 1 / i, "lr": 0.1} for i in (1, 2, 3)
        ]
        kinds = {"bbox": {"AP": 0.3, "AP50": 0.5}, "segm": {"AP": None, "AP50": None}}
        evaluation = {"iteration": 3, "evaluation": {"val": kinds}}
        halves = []
        for lines in ([], training, [*training, evaluation]):
            plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
            plot = pixels(Image.open(tmp_path / "curves.png"))
            halves.append(np.split(plot, [plot.shape[1] // 2], axis=1))
        assert (halves[0][0] != halves[1][0]).any()
        assert (halves[1][1] != halves[2][1]).any()

    def test_curves(self, tmp_path, monkeypatch):
        drawn: dict[str, list[list[float]]] = {}

        def plot(self: Axes, x: Any, y: Any, label: str, **style: Any) -> None:
            drawn[label] = [list(x), list(y)]

        monkeypatch.setattr(Axes, "plot", plot)
        kinds = {"bbox": {"AP": 0.25, "AP50": 0.5}, "segm": {"AP": None, "AP50": None}}
        lines: list[dict[str, Any]] = [
            {"iteration": 1, "loss": 2.0, "loss_mask": 1.5, "lr": 0.1},
            {"iteration": 2, "loss": 1.0, "loss_mask": 0.5, "lr": 0.1},
            {"iteration": 2, "evaluation": {"val": kinds}},
        ]
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert drawn == {
            "loss": [[1, 2], [2.0, 1.0]],
            "mask": [[1, 2], [1.5, 0.5]],
        }  # one point is no curve
        lines.append({"iteration": 4, "evaluation": {"val": kinds}})
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert drawn["bbox AP"] == [[2, 4], [25.0, 25.0]]
        assert drawn["bbox AP50"] == [[2, 4], [50.0, 50.0]]
        lines.append({"iteration": 4, "evaluation": {"other": kinds}})
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert "val bbox AP" in drawn
        assert "other bbox AP50" in drawn

    def test_curves_of_other_evaluations(self, tmp_path, monkeypatch):
        drawn: dict[str, list[float]] = {}
        monkeypatch.setattr(
            Axes, "plot", lambda self, x, y, label, **style: drawn.update({label: list(y)})
        )
        kinds = {
            "voc": {"AP50": 0.5, "AP50_07": 0.25},
            "box_proposal": {"AR@100": 0.75, "ARl@100": None, "AR@1000": 1.0},
        }
        lines = [{"iteration": n, "evaluation": {"val": kinds}} for n in (2, 4)]
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert drawn == {
            "voc AP50": [50.0, 50.0],
            "voc AP50_07": [25.0, 25.0],
            "box_proposal AR@100": [75.0, 75.0],
            "box_proposal AR@1000": [100.0, 100.0],
        }

    def test_no_lines_yet(self, tmp_path):
        plot_metrics(self.write(tmp_path, []), tmp_path / "curves.png")
        assert Image.open(tmp_path / "curves.png").width > 0

    def test_bad_line(self, tmp_path):
        for bad in ("{", "[]", '{"loss": 1}', "3"):
            (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n' + bad + "\n")
            with pytest.raises(DataError, match=r"metrics\.jsonl: line 2 is not a JSON object"):
                plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")

    def test_missing_file(self, tmp_path):
        with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read"):
            plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
