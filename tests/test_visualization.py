"""Drawn detections, contact sheets and curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from detlite.data import DataError
from detlite.structures.masks import encode_bitmap
from detlite.visualization import contact_sheet, draw_detections, plot_metrics

ONE = [{"id": 7, "name": "cell"}]
TWO = [*ONE, {"id": 9, "name": "speck"}]


def grey(height: int = 600, width: int = 800) -> Tensor:
    return torch.full((3, height, width), 100, dtype=torch.uint8)


def detections(**fields: Any) -> dict[str, Any]:
    return {
        "boxes": torch.tensor([[100.0, 200.0, 300.0, 400.0], [500.0, 200.0, 700.0, 400.0]]),
        "labels": torch.tensor([1, 1]),
        "scores": torch.tensor([0.9, 0.6]),
        **fields,
    }


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


class TestDrawDetections:
    def test_boxes_outline_and_leave_the_rest(self) -> None:
        drawn = pixels(draw_detections(grey(), detections(), ONE))
        changed = (drawn != 100).any(axis=2)
        assert drawn.shape == (600, 800, 3)
        assert changed[200:400, 100].all()  # left side
        assert changed[200:400, 299].all()  # right side, the last pixel inside
        assert not changed[210:390, 110:290].any()
        assert not changed[450:].any()

    def test_masks_tint_what_is_inside(self) -> None:
        masks = torch.zeros(2, 600, 800, dtype=torch.bool)
        masks[0, 250:350, 150:250] = True
        drawn = pixels(draw_detections(grey(), detections(masks=masks), ONE))
        inside, outside = drawn[300, 200], drawn[300, 270]
        assert (outside == 100).all()
        assert (inside != 100).any()
        assert abs(inside - 100).max() < abs(drawn[300, 100] - 100).max()  # translucent

    def test_run_lengths_draw_as_bitmaps(self) -> None:
        masks = torch.zeros(2, 600, 800, dtype=torch.uint8)
        masks[0, 250:350, 150:250] = 1
        rles = [encode_bitmap(mask.numpy()) for mask in masks]
        one = draw_detections(grey(), detections(masks=masks), ONE)
        other = draw_detections(grey(), detections(masks=rles), ONE)
        assert (pixels(one) == pixels(other)).all()

    def test_keypoints_are_dots_where_they_are_labelled(self) -> None:
        points = torch.zeros(2, 2, 3)
        points[0, 0] = torch.tensor([200.0, 300, 2])
        points[0, 1] = torch.tensor([260.0, 350, 0])
        drawn = pixels(draw_detections(grey(), detections(keypoints=points), ONE))
        assert (drawn[300, 200] != 100).any()
        assert (drawn[300, 200] == drawn[300, 100]).all()  # the box's colour
        assert (drawn[350, 260] == 100).all()

    def test_low_scores_are_left_out(self) -> None:
        drawn = pixels(draw_detections(grey(), detections(), ONE, min_score=0.7))
        assert (drawn[:, 110:290] != 100).any()
        assert (drawn[:, 480:] == 100).all()

    def test_targets_have_no_scores(self) -> None:
        target = detections()
        del target["scores"]
        assert (pixels(draw_detections(grey(), target, ONE))[:, 480:] != 100).any()

    @pytest.mark.parametrize(("categories", "same"), [(ONE, False), (TWO, True)])
    def test_colour_by_object_or_by_category(
        self, categories: list[dict[str, Any]], same: bool
    ) -> None:
        drawn = pixels(draw_detections(grey(), detections(), categories))
        assert (drawn[300, 100] == drawn[300, 500]).all() == same

    def test_tiny_picture_is_enlarged_with_its_boxes(self) -> None:
        tiny = {"boxes": torch.tensor([[2.0, 4.0, 8.0, 9.0]]), "labels": torch.tensor([1])}
        drawn = draw_detections(grey(12, 16), tiny, ONE, min_side=160)
        assert drawn.size == (160, 120)
        assert (pixels(drawn)[50:80, 20] != 100).any(axis=1).all()

    def test_label_stays_in_the_picture(self) -> None:
        corner = {"boxes": torch.tensor([[790.0, 0.0, 800.0, 10.0]]), "labels": torch.tensor([1])}
        changed = (pixels(draw_detections(grey(), corner, ONE)) != 100).any(axis=2)
        assert changed[:20, 770:].mean() > 0.5

    def test_nothing_found(self) -> None:
        none = {
            "boxes": torch.zeros(0, 4),
            "labels": torch.zeros(0, dtype=torch.int64),
            "scores": torch.zeros(0),
            "masks": torch.zeros(0, 600, 800, dtype=torch.bool),
        }
        assert (pixels(draw_detections(grey(), none, ONE)) == 100).all()

    def test_given_picture_is_not_changed(self) -> None:
        picture = Image.new("L", (600, 500), 100)
        draw_detections(picture, detections(), ONE)
        assert picture.getextrema() == (100, 100)


class TestContactSheet:
    def test_rows_and_columns(self) -> None:
        pictures = [Image.new("RGB", (40, 30), (k * 20, 0, 0)) for k in range(5)]
        sheet = contact_sheet(pictures, columns=3, gap=10)
        assert sheet.size == (3 * 50 + 10, 2 * 40 + 10)
        assert [sheet.getpixel((30 + 50 * k, 25)) for k in range(3)] == [
            (0, 0, 0),
            (20, 0, 0),
            (40, 0, 0),
        ]
        assert sheet.getpixel((80, 65)) == (80, 0, 0)
        assert sheet.getpixel((130, 65)) == (255, 255, 255)

    def test_large_pictures_shrink_and_keep_their_shape(self) -> None:
        sheet = contact_sheet([Image.new("RGB", (1000, 500))], cell=100, gap=0)
        assert sheet.size == (100, 50)

    def test_bad_arguments(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            contact_sheet([])
        with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
            contact_sheet([Image.new("RGB", (4, 4))], columns=0)


class TestPlotMetrics:
    def write(self, tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def test_losses_and_precision(self, tmp_path: Path) -> None:
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
        assert (halves[0][0] != halves[1][0]).any()  # the losses appear on the left
        assert (halves[1][1] != halves[2][1]).any()  # the precision on the right

    def test_what_is_drawn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            "bbox AP": [[2], [25.0]],
            "bbox AP50": [[2], [50.0]],
        }
        lines.append({"iteration": 2, "evaluation": {"other": kinds}})
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert "val bbox AP" in drawn
        assert "other bbox AP50" in drawn

    def test_kinds_without_cocos_average_precision(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: dict[str, list[float]] = {}
        monkeypatch.setattr(
            Axes, "plot", lambda self, x, y, label, **style: drawn.update({label: list(y)})
        )
        kinds = {
            "voc": {"AP50": 0.5, "AP50_07": 0.25},
            "box_proposal": {"AR@100": 0.75, "ARl@100": None, "AR@1000": 1.0},
        }
        lines = [{"iteration": 2, "evaluation": {"val": kinds}}]
        plot_metrics(self.write(tmp_path, lines), tmp_path / "curves.png")
        assert drawn == {
            "voc AP50": [50.0],
            "voc AP50_07": [25.0],
            "box_proposal AR@100": [75.0],
            "box_proposal AR@1000": [100.0],
        }

    def test_no_lines_yet(self, tmp_path: Path) -> None:
        plot_metrics(self.write(tmp_path, []), tmp_path / "curves.png")
        assert Image.open(tmp_path / "curves.png").width > 0

    def test_bad_line(self, tmp_path: Path) -> None:
        for bad in ("{", "[]", '{"loss": 1}', "3"):
            (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n' + bad + "\n")
            with pytest.raises(DataError, match=r"metrics\.jsonl: line 2 is not a json object"):
                plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read"):
            plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
