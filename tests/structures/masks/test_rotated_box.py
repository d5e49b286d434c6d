"""Test the area and the oriented rectangle of masks."""

import math

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.structures.masks.rotated_box import area, rotated_box


def rotated_rectangle(x, y, width, height, degrees):
    """Draw a rectangle whose `width` is rotated clockwise from the x axis."""
    rows, columns = np.mgrid[:120, :160] + 0.5
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    along = (columns - x) * cos + (rows - y) * sin
    across = (rows - y) * cos - (columns - x) * sin
    return (abs(along) <= width / 2) & (abs(across) <= height / 2)


def random_masks():
    generator = np.random.default_rng(0)
    for _ in range(50):
        height, width = generator.integers(1, 30, 2)
        yield generator.random((height, width)) < generator.choice([0.05, 0.3, 0.9, 1.0])


def as_rle(mask):
    return rle_codec.encode(np.asfortranarray(mask.astype(np.uint8)))


@pytest.mark.parametrize("degrees", [-90, -60, -45, -1, 0, 30, 45, 89])
def test_a_rotated_rectangle_is_found(degrees):
    x, y, width, height, angle = rotated_box(rotated_rectangle(80.5, 60.2, 90, 30, degrees))
    assert (x, y) == pytest.approx((80.5, 60.2), abs=1)
    assert (width, height) == pytest.approx((90, 30), abs=2.5)
    assert abs((angle - degrees + 90) % 180 - 90) < 2
    assert -90 <= angle < 90


def test_upright_and_empty_masks():
    mask = np.zeros((7, 9), bool)
    assert rotated_box(mask) == rotated_box(as_rle(mask)) == (0, 0, 0, 0, 0)
    assert area(mask) == area(as_rle(mask)) == 0
    mask[2:4, 3:8] = True
    assert rotated_box(mask) == (5.5, 3, 5, 2, 0)
    mask[:, 4] = True
    assert rotated_box(mask[:, 4:5]) == (0.5, 3.5, 7, 1, -90)
    assert area(mask) == 15


def test_rectangles_have_the_area_of_opencv():
    cv2 = pytest.importorskip("cv2")
    for mask in filter(np.any, random_masks()):
        rows, columns = np.nonzero(mask)
        corners = [(x + dx, y + dy) for x, y in zip(columns, rows, strict=True)
                   for dx in (0, 1) for dy in (0, 1)]  # fmt: skip
        corners = np.array(corners, np.float32)
        (_, expected, _) = cv2.minAreaRect(corners)
        x, y, width, height, angle = rotated_box(mask)
        assert width * height == pytest.approx(math.prod(expected), rel=1e-4)
        # All pixels are inside.
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        turned = (corners - [x, y]) @ [[cos, -sin], [sin, cos]]
        assert (abs(turned) <= np.array([width, height]) / 2 + 1e-4).all()


def test_bitmaps_and_run_lengths_agree():
    for mask in random_masks():
        rle = as_rle(mask)
        assert area(mask) == area(rle) == mask.sum()
        assert rotated_box(mask) == rotated_box(rle)
