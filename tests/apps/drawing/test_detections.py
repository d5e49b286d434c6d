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

ONE = [{"id": 7, "name": "cell"}]
TWO = [*ONE, {"id": 9, "name": "speck"}]
UNNAMED = [*ONE, {"id": 9, "name": ""}]


def gray(height: int = 600, width: int = 800) -> Tensor:
    return torch.full((3, height, width), 100, dtype=torch.uint8)


def detections(boxes: Any = ((100, 200, 300, 400), (500, 200, 700, 400)), **fields: Any) -> Any:
    """Return a target with the fields, by default of two large objects of the same category."""
    boxes = torch.as_tensor(boxes, dtype=torch.float32)
    return {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64), **fields}


def found(*boxes: Any, **fields: Any) -> Any:
    """Return detections with scores of 0.9 and 0.6."""
    target = detections(boxes, **fields) if boxes else detections(**fields)
    return target | {"scores": torch.tensor([0.9, 0.6])[: len(target["boxes"])]}


def mask(top: int, bottom: int, left: int, right: int, count: int = 2) -> Tensor:
    """Return masks of which the first one is a rectangle, and the others are empty."""
    masks = torch.zeros(count, 600, 800, dtype=torch.bool)
    masks[:1, top:bottom, left:right] = True
    return masks


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


class Found(dict[str, Any]):
    threshold = 0.7


SMALL = (100.0, 100, 116, 116)
NONE = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
# Detections, categories and options, and regions (top, bottom, left, right) of which all, some, or
# no pixels are drawn.
CASES = {
    "boxes are outlines, the last pixel is inside": (
        found(), ONE, {}, [(200, 400, 100, 101), (200, 400, 299, 300)], [],
        [(210, 390, 110, 290), (450, 600, 0, 800)]),
    "low scores": (found(), ONE, {"min_score": 0.7}, [], [(0, 600, 110, 290)],
                   [(0, 600, 480, 800)]),
    "low scores of a prediction": (Found(found()), ONE, {}, [], [], [(0, 600, 480, 800)]),
    "no scores": (detections(), ONE, {}, [(200, 400, 699, 700)], [], []),
    "tags of names": (detections(labels=torch.tensor([1, 2])), UNNAMED, {}, [],
                      [(190, 199, 100, 120)], [(0, 199, 490, 800)]),
    "tags do not cover each other": (
        found((100, 200, 300, 400), (104, 200, 300, 400)), ONE, {}, [], [(402, 600, 0, 800)], []),
    "tags of equal boxes": (found(*[(100, 0, 300, 600)] * 2), ONE, {"tags": True}, [],
                            [(0, 20, 102, 140), (0, 20, 302, 340)], []),
    "tags stay inside the image": (detections([(790, 0, 800, 10)]), ONE, {"tags": True}, [],
                                   [(11, 24, 770, 800)], []),
    "a small mask has only an outline": (
        found(SMALL, masks=mask(102, 114, 102, 114, 1)), TWO, {}, [(102, 103, 102, 114)], [],
        [(103, 113, 103, 113), (101, 102, 0, 800)]),
    "a small box has no tag": (found(SMALL), TWO, {}, [(100, 101, 100, 116)], [],
                               [(0, 100, 0, 800)]),
    "unless all have one": (found(SMALL), TWO, {"tags": True}, [], [(0, 100, 0, 800)], []),
    "every track has a tag": (
        found((100, 200, 140, 240), (104, 210, 150, 240), track_ids=[1, 2]), ONE, {}, [],
        [(180, 199, 100, 130), (241, 260, 104, 130)], []),
    "no detections": (NONE | {"masks": mask(0, 0, 0, 0, 0)}, ONE, {}, [], [], [(0, 600, 0, 800)]),
    "an empty mask has a box": (found(masks=mask(200, 400, 100, 300)), ONE, {},
                                [(201, 399, 101, 299), (300, 301, 500, 502)], [], []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_drawn_pixels(case):
    target, categories, options, complete, some, none = CASES[case]
    drawn = pixels(draw_detections(gray(), target, categories, **options))
    changed = (drawn != 100).any(axis=2)
    parts = [
        [changed[top:bottom, left:right] for top, bottom, left, right in regions]
        for regions in (complete, some, none)
    ]
    assert all(part.all() for part in parts[0])
    assert all(part.any() for part in parts[1])
    assert not any(part.any() for part in parts[2])


@pytest.mark.parametrize("kind", ["bitmaps", "RLEs", "packed"])
def test_masks_are_translucent(kind):
    masks: Any = mask(250, 350, 150, 250)
    if kind != "bitmaps":
        masks = [encode_bitmap(one.numpy()) for one in masks]
    if kind == "packed":
        masks = PackedMasks.from_bitmaps(mask(250, 350, 150, 250))
    drawn = pixels(draw_detections(gray(), found(masks=masks), ONE))
    inside, outside = drawn[300, 200], drawn[300, 270]
    assert (outside == 100).all()
    assert 0 < abs(inside - 100).max() < abs(drawn[300, 100] - 100).max()


def test_only_visible_keypoints_are_drawn():
    points = torch.zeros(2, 2, 3)
    points[0] = torch.tensor([[200.0, 300, 2], [260, 350, 0]])
    drawn = pixels(draw_detections(gray(), found(keypoints=points), ONE))
    assert (drawn[300, 200] == drawn[300, 100]).all()  # color of the box
    assert (drawn[350, 260] == 100).all()


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({}, {}, [category_color(1)] * 2),
        ({"labels": torch.tensor([2, 2])}, {}, [category_color(2)] * 2),
        ({}, {"colors": [(255, 0, 0), (0, 0, 255)]}, [(255, 0, 0), (0, 0, 255)]),
        ({"track_ids": [2, None]}, {}, [category_color(2), (190, 190, 190)]),
    ],
)
def test_colors_of_categories_and_tracks(fields, options, expected):
    drawn = pixels(draw_detections(gray(), found(**fields), TWO, **options))
    assert [tuple(drawn[300, x]) for x in (100, 500)] == expected


@pytest.mark.parametrize("side", [600, 3000])
def test_lines_scale_with_the_image(side):
    target = detections(torch.tensor([[0.2, 0.2, 0.6, 0.6]]) * side)
    drawn = pixels(draw_detections(gray(side, side), target, ONE))
    line = (drawn[side // 2, : side // 2] == category_color(1)).all(axis=1).sum()
    assert line == round(side / 320)


def test_dark_borders_separate_lines_from_an_image_of_the_same_color():
    image = torch.tensor(category_color(1), dtype=torch.uint8)[:, None, None].expand(3, 600, 800)
    target = found(masks=mask(250, 350, 150, 250))
    drawn = pixels(draw_detections(image, target, ONE, tags=False))
    assert (drawn[300, [499, 149]] < 50).all()  # next to the box of one and the mask of the other


def test_size_of_the_drawing():
    target = found(masks=mask(200, 400, 100, 300))
    drawn = draw_detections(gray(), target, ONE, max_side=400)
    assert drawn.size == (400, 300)
    changed = (pixels(drawn) != 100).any(axis=2)
    assert changed[101:199, 51:149].all()  # the mask
    assert not changed[120:180, 260:340].any()
    drawn = draw_detections(gray(12, 16), detections([(2, 4, 8, 9)]), ONE, min_side=160)
    assert drawn.size == (160, 120)
    assert (pixels(drawn)[50:80, 20] != 100).any(axis=1).all()


def test_crowds_have_no_tags():
    corners = torch.cartesian_prod(torch.arange(8), torch.arange(8)) * 90 + 20
    boxes = torch.cat([corners, corners + 60], dim=1).tolist()
    for count, tags, expected in (
        (64, None, False), (40, None, True), (40, False, False), (64, True, True),
    ):  # fmt: skip
        crowd = detections(boxes[:count], scores=torch.full((count,), 0.9))
        drawn = pixels(draw_detections(gray(800, 800), crowd, ONE, tags=tags))
        near = np.concatenate([drawn[10:19, 20:80], drawn[81:89, 20:80]])  # of the first box
        assert (near != 100).any() == expected
