"""Valid masks are kept as written, and damaged run lengths are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlite.data.annotations.rules import mask_box, mask_extent
from detlite.data.annotations.single import read_segmentation
from detlite.structures.masks.formats import encode_bitmap, polygons_to_rle, to_bitmap
from detlite.structures.masks.rle import run_lengths, tight_bounds


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 1, 5, 1, 5, 5]],
        [[40.5, 1, 42, 1, 41, 9], [1, 1, 5, 1, 5, 5]],
        [[1, -9, 9, 1, 1, 9]],
        {"size": [30, 40], "counts": [0, 1200]},
        {"size": [30, 40], "counts": "0`U1"},
    ],
)
def test_valid_segmentations_are_kept(segmentation):
    assert read_segmentation(segmentation, 30, 40) == (segmentation, None, None)


@settings(max_examples=40)
@given(bitmap=st.lists(st.booleans(), min_size=63, max_size=63).filter(any))
def test_compressed_rles_are_checked(bitmap):
    rle = encode_bitmap(np.array(bitmap).reshape(9, 7))
    assert read_segmentation(rle, 9, 7).problem is None
    damaged = {**rle, "counts": rle["counts"][:-1]}
    assert read_segmentation(damaged, 9, 7).problem is not None


@settings(max_examples=40)
@given(bitmap=st.lists(st.booleans(), min_size=63, max_size=63))
def test_boxes_of_masks(bitmap):
    pixels = np.array(bitmap).reshape(9, 7)
    left, top, right, bottom = tight_bounds(pixels)
    box = [left, top, right - left, bottom - top] if right else None
    rle = encode_bitmap(pixels)
    runs = {**rle, "counts": [0, 0, *run_lengths(rle["counts"]).tolist(), 0]}
    assert mask_box(rle, 9, 7) == mask_extent(runs, 9, 7) == box
    assert mask_extent([[2, 3, 5, 1, 9, 7], [-1, 4, 1, 5, 2, 6]], 9, 7) == [0, 1, 7, 6]


@pytest.mark.parametrize(("side", "refused"), [(1_000_000, False), (10_000_000, True)])
def test_outlines_that_take_gigabytes_are_refused(side, refused):
    near = [[number / 10, 1] for number in range(40)]
    ring = np.array([*near, [side, 0], [side, side], [0, side]]).ravel().tolist()
    problem = read_segmentation([ring], side, side).problem or ""
    assert ("outline of more than 16777216 pixels" in problem) == refused
    if refused:
        with pytest.raises(ValueError, match="outline of more than"):
            polygons_to_rle([ring], side, side)


def test_box_of_polygons_is_that_of_their_pixels():
    polygons = [[2, 3, 5.4, 1, 9, 7], [-1, 4, 1, 5, 2, 6.7]]
    left, top, right, bottom = tight_bounds(to_bitmap(polygons, 9, 7))
    assert mask_box(polygons, 9, 7) == [left, top, right - left, bottom - top]
