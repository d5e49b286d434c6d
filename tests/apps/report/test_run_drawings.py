"""Test the plots of losses and metrics, and the sheet of detections."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from detlite.apps.drawing.html_page import side_by_side
from detlite.apps.report.run_drawings import draw_column, plot_metrics
from detlite.data import DataError

COCO = {"bbox": {"AP": 0.25, "AP50": 0.5}, "segm": {"AP": None, "AP50": None}}
OTHER = {
    "voc": {"AP50": 0.5, "AP50_07": 0.25},
    "box_proposal": {"AR@100": 0.75, "ARl@100": None, "AR@1000": 1.0},
}
TRAINING = [
    {"iteration": 1, "loss_mask": 1.5, "loss": 2.0, "lr": 0.1},
    {"iteration": 2, "loss_mask": 0.5, "loss": 1.0, "lr": 0.1},
]
LOSSES = {"loss": [[1, 2], [2.0, 1.0]], "mask": [[1, 2], [1.5, 0.5]]}
AT_ONE = {"bbox AP: 25.0": [[2], [25.0]], "bbox AP50: 50.0": [[2], [50.0]]}


def evaluations(*sets: str, kinds: Any = COCO) -> list[dict[str, Any]]:
    """Return the lines of two evaluations, with the same metrics on each dataset."""
    return [{"iteration": n, "evaluation": dict.fromkeys(sets, kinds)} for n in (2, 4)]


def curves(*values: tuple[str, float]) -> dict[str, list[list[float]]]:
    """Return constant curves of two evaluations."""
    return {
        name if "loss" in name else f"{name}: {value:.1f}": [[2, 4], [value, value]]
        for name, value in values
    }


def plot(folder: Path, lines: list[dict[str, Any]]) -> np.ndarray:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot_metrics(folder / "metrics.jsonl", folder / "curves.png")
    return np.asarray(Image.open(folder / "curves.png")).astype(int)


class TestPlotMetrics:
    def test_losses_left_and_metrics_right(self, tmp_path):
        evaluation = evaluations("val")[0]
        empty, losses, both = (
            np.split(plot(tmp_path, lines), 2, axis=1)
            for lines in ([], TRAINING, [*TRAINING, evaluation])
        )
        assert (empty[0] != losses[0]).any()
        assert (losses[1] != both[1]).any()

    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            ([*TRAINING, evaluations("val")[0]], LOSSES | AT_ONE),
            ([*TRAINING, *evaluations("val")],
             LOSSES | curves(("bbox AP", 25), ("bbox AP50", 50))),
            (evaluations("val", "other"),
             curves(("val bbox AP", 25), ("val bbox AP50", 50), ("other bbox AP", 25),
                    ("other bbox AP50", 50))),
            (evaluations("val", kinds=OTHER),
             curves(("voc AP50", 50), ("voc AP50_07", 25), ("box_proposal AR@100", 75),
                    ("box_proposal AR@1000", 100))),
            (evaluations("val", kinds={"loss": {"total": 0.5}}), curves(("validation loss", 0.5))),
        ],
    )  # fmt: skip
    def test_curves(self, lines, expected, tmp_path, monkeypatch):
        drawn: dict[str, list[list[float]]] = {}

        def record(self: Axes, x: Any, y: Any, *style: Any, label: str, **styles: Any) -> None:
            drawn[label] = [list(x), list(y)]

        monkeypatch.setattr(Axes, "plot", record)
        plot(tmp_path, lines)
        assert drawn == expected

    @pytest.mark.parametrize("bad", ["{", "[]", '{"loss": 1}', "3"])
    def test_bad_line(self, bad, tmp_path):
        (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n' + bad + "\n")
        with pytest.raises(DataError, match=r"metrics\.jsonl: (cannot be read|a line has no 'it)"):
            plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")

    def test_missing_file(self, tmp_path):
        with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read"):
            plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")


def test_pairs_in_a_column_below_a_title() -> None:
    pair = side_by_side([Image.new("RGB", (196, 100)), Image.new("RGB", (196, 100), "red")], 8)
    sheet = draw_column([pair, pair], "title")
    assert sheet.size == (416, 36 + 2 * 108)
    assert (np.asarray(sheet)[:36, 8:100] < 100).any()
    for y in (40, 172):
        assert [sheet.getpixel((x, y)) for x in (20, 400)] == [(0, 0, 0), (255, 0, 0)]


def test_side_by_side() -> None:
    joined = side_by_side([Image.new("RGB", (20, 30)), Image.new("RGB", (10, 10))], gap=4)
    assert joined.size == (34, 30)
    assert [joined.getpixel((30, y)) for y in (5, 15, 25)] == [(255,) * 3, (0,) * 3, (255,) * 3]
