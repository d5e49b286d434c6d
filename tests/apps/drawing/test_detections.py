"""Test drawn detections."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from detlite.apps.drawing.detections import category_color, draw_detections
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.packed import PackedMasks
from tests.builders import rectangle

ONE = [{"id": 7, "name": "cell"}]
TWO = [*ONE, {"id": 9, "name": "speck"}]


def gray(height: int = 600, width: int = 800) -> Tensor:
    return torch.full((3, height, width), 100, dtype=torch.uint8)


def detections(**fields: Any) -> dict[str, Any]:
    return {
        "boxes": torch.tensor([[100.0, 200.0, 300.0, 400.0], [500.0, 200.0, 700.0, 400.0]]),
        "labels": torch.tensor([1, 1]),
        "scores": torch.tensor([0.9, 0.6]),
        **fields,
    }


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


class TestDrawDetections:
    def test_boxes_change_only_their_outline(self):
        drawn = pixels(draw_detections(gray(), detections(), ONE))
        changed = (drawn != 100).any(axis=2)
        assert drawn.shape == (600, 800, 3)
        assert changed[200:400, 100].all()  # left side
        assert changed[200:400, 299].all()  # right side, the last pixel inside
        assert not changed[210:390, 110:290].any()
        assert not changed[450:].any()

    def test_masks_are_translucent(self):
        masks = torch.zeros(2, 600, 800, dtype=torch.bool)
        masks[0, 250:350, 150:250] = True
        drawn = pixels(draw_detections(gray(), detections(masks=masks), ONE))
        inside, outside = drawn[300, 200], drawn[300, 270]
        assert (outside == 100).all()
        assert (inside != 100).any()
        assert abs(inside - 100).max() < abs(drawn[300, 100] - 100).max()

    def test_colors_and_tags(self):
        names = [{"id": 1, "name": "cell"}, {"id": 2, "name": ""}]
        target = detections(labels=torch.tensor([1, 2]))
        del target["scores"]
        colors = [(255, 0, 0), (0, 0, 255)]
        drawn = pixels(draw_detections(gray(), target, names, colors=colors))
        assert (drawn[300, 100] == [255, 0, 0]).all()
        assert (drawn[300, 500] == [0, 0, 255]).all()
        changed = (drawn != 100).any(axis=2)
        assert changed[190:199, 100:120].any()  # tag above the first box
        assert not changed[:199, 490:].any()  # no tag above the second box

    @pytest.mark.parametrize(
        "convert",
        [
            lambda masks: [encode_bitmap(mask.numpy()) for mask in masks],
            PackedMasks.from_bitmaps,
            lambda masks: PackedMasks.from_segmentations(
                [rectangle(150, 250, 100, 100)] * 2, 600, 800, as_rle=False
            ),
        ],
    )
    def test_rles_and_polygons_equal_bitmaps(self, convert):
        masks = torch.zeros(2, 600, 800, dtype=torch.uint8)
        masks[:, 250:350, 150:250] = 1
        one = draw_detections(gray(), detections(masks=masks), ONE)
        other = draw_detections(gray(), detections(masks=convert(masks)), ONE)
        assert (pixels(one) == pixels(other)).all()

    def test_only_visible_keypoints_are_drawn(self):
        points = torch.zeros(2, 2, 3)
        points[0, 0] = torch.tensor([200.0, 300, 2])
        points[0, 1] = torch.tensor([260.0, 350, 0])
        drawn = pixels(draw_detections(gray(), detections(keypoints=points), ONE))
        assert (drawn[300, 200] != 100).any()
        assert (drawn[300, 200] == drawn[300, 100]).all()  # color of the box
        assert (drawn[350, 260] == 100).all()

    def test_low_scores_are_not_drawn(self):
        drawn = pixels(draw_detections(gray(), detections(), ONE, min_score=0.7))
        assert (drawn[:, 110:290] != 100).any()
        assert (drawn[:, 480:] == 100).all()

    def test_targets_without_scores(self):
        target = detections()
        del target["scores"]
        assert (pixels(draw_detections(gray(), target, ONE))[:, 480:] != 100).any()

    def test_a_category_has_one_color(self):
        target = detections(labels=torch.tensor([2, 2]))
        drawn = pixels(draw_detections(gray(), target, TWO))
        assert (drawn[300, 100] == category_color(2)).all()
        assert (drawn[300, 500] == category_color(2)).all()
        tracked = pixels(draw_detections(gray(), target | {"track_ids": [1, None]}, TWO))
        assert (tracked[300, 100] == category_color(1)).all()
        red, green, blue = tracked[300, 500]
        assert red == green == blue  # gray: it has no track

    def test_every_track_has_a_tag(self):
        boxes = torch.tensor([[100.0, 200, 140, 240], [104.0, 210, 150, 240]])
        target = detections(boxes=boxes, track_ids=[1, 2])
        alone = detections(boxes=boxes[1:], labels=torch.ones(1, dtype=torch.int64),
                           scores=torch.tensor([0.6]), track_ids=[2])  # fmt: skip
        for objects in (target, alone):
            drawn = pixels(draw_detections(gray(), objects, ONE))
            assert (drawn[:, 100:300] == category_color(2)).all(axis=2).sum() > 200

    def test_tags_of_equal_boxes_do_not_cover_each_other(self):
        target = detections(boxes=torch.tensor([[100.0, 0.0, 300.0, 600.0]] * 2))
        drawn = pixels(draw_detections(gray(), target, ONE, tags=True))
        assert (drawn[:20, 102:140] != 100).any()
        assert (drawn[:20, 302:340] != 100).any()

    @pytest.mark.parametrize("side", [600, 3000])
    def test_lines_scale_with_the_image(self, side):
        box = {"boxes": torch.tensor([[0.2, 0.2, 0.6, 0.6]]) * side, "labels": torch.tensor([1])}
        drawn = pixels(draw_detections(gray(side, side), box, ONE))
        color = category_color(1)
        line = (drawn[side // 2, : side // 2] == color).all(axis=1).sum()
        assert line == round(side / 320)

    def test_dark_borders_separate_lines_from_an_image_of_the_same_color(self):
        color = category_color(1)
        image = torch.tensor(color, dtype=torch.uint8)[:, None, None].expand(3, 600, 800)
        masks = torch.zeros(2, 600, 800, dtype=torch.bool)
        masks[:, 250:350, 150:250] = True
        drawn = pixels(draw_detections(image, detections(masks=masks), ONE, tags=False))
        assert (drawn[300, 99] < 50).all()  # next to the box
        assert (drawn[300, 149] < 50).all()  # next to the mask

    def test_large_images_are_drawn_at_their_final_size(self):
        masks = torch.zeros(2, 600, 800, dtype=torch.bool)
        masks[0, 200:400, 100:300] = True
        drawn = draw_detections(gray(), detections(masks=masks), ONE, max_side=400)
        assert drawn.size == (400, 300)
        changed = (pixels(drawn) != 100).any(axis=2)
        assert changed[101:199, 51:149].all()  # the mask
        assert changed[150, 250]  # the box of the empty mask
        assert not changed[120:180, 260:340].any()

    def test_small_objects_have_only_an_outline(self):
        bitmap = torch.zeros(1, 600, 800, dtype=torch.bool)
        bitmap[0, 102:114, 102:114] = True
        cell = {
            "boxes": torch.tensor([[100.0, 100.0, 116.0, 116.0]]),
            "labels": torch.tensor([1]),
            "scores": torch.tensor([0.9]),
        }
        changed = (pixels(draw_detections(gray(), cell | {"masks": bitmap}, TWO)) != 100).any(2)
        assert changed[102, 102:114].all()
        assert not changed[103:113, 103:113].any()
        assert not changed[101].any()  # neither the box nor a tag
        changed = (pixels(draw_detections(gray(), cell, TWO)) != 100).any(axis=2)
        assert changed[100, 100:116].all()  # without a mask, its box
        changed = (pixels(draw_detections(gray(), cell, TWO, tags=True)) != 100).any(axis=2)
        assert changed[:100].any()

    def test_crowds_have_no_tags(self):
        corners = torch.cartesian_prod(torch.arange(8), torch.arange(8)) * 90.0 + 20
        crowd = {
            "boxes": torch.cat([corners, corners + 60], dim=1),
            "labels": torch.ones(64, dtype=torch.int64),
            "scores": torch.full((64,), 0.9),
        }
        few = {name: values[:40] for name, values in crowd.items()}
        image = gray(800, 800)
        for objects, tags, expected in (
            (crowd, None, False), (few, None, True), (few, False, False), (crowd, True, True),
        ):  # fmt: skip
            drawn = pixels(draw_detections(image, objects, ONE, tags=tags))
            above = drawn[10:19, 20:80]  # the first box starts in row 20
            below = drawn[81:89, 20:80]
            assert ((above != 100).any() or (below != 100).any()) == expected

    def test_tags_do_not_cover_each_other(self):
        boxes = torch.tensor([[100.0, 200, 300, 400], [104.0, 200, 300, 400]])
        one, both = (
            (pixels(draw_detections(gray(), detections(boxes=boxes), ONE, min_score=score))
             != 100).any(axis=2)
            for score in (0.7, 0.5)
        )  # fmt: skip
        assert (one[:199] == both[:199]).all()
        assert both[402:].any()  # the tag of the second object is below it

    def test_the_threshold_of_a_prediction(self):
        class Found(dict[str, Any]):
            threshold = 0.7

        drawn = pixels(draw_detections(gray(), Found(detections()), ONE))
        assert (drawn[:, 480:] == 100).all()

    def test_small_image_is_enlarged_with_its_boxes(self):
        tiny = {"boxes": torch.tensor([[2.0, 4.0, 8.0, 9.0]]), "labels": torch.tensor([1])}
        drawn = draw_detections(gray(12, 16), tiny, ONE, min_side=160)
        assert drawn.size == (160, 120)
        assert (pixels(drawn)[50:80, 20] != 100).any(axis=1).all()

    def test_tag_stays_inside_the_image(self):
        corner = {"boxes": torch.tensor([[790.0, 0.0, 800.0, 10.0]]), "labels": torch.tensor([1])}
        changed = (pixels(draw_detections(gray(), corner, ONE, tags=True)) != 100).any(axis=2)
        assert changed[11:24, 770:].any()
        assert changed.sum() > 100  # all of the tag

    def test_no_detections(self):
        none = {
            "boxes": torch.zeros(0, 4),
            "labels": torch.zeros(0, dtype=torch.int64),
            "scores": torch.zeros(0),
            "masks": torch.zeros(0, 600, 800, dtype=torch.bool),
        }
        assert (pixels(draw_detections(gray(), none, ONE)) == 100).all()

    def test_input_image_is_not_changed(self):
        image = Image.new("L", (600, 500), 100)
        draw_detections(image, detections(), ONE)
        assert image.getextrema() == (100, 100)
