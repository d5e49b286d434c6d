"""Compare edited masks with the same edits of their bitmaps."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from detlite.structures.masks.editing import (
    crop_to_window,
    masks_to_boxes,
    occlude_masks,
    place_masks,
)
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.packed import PackedMasks
from tests.builders import blob

SIZE = (37, 53)  # height, width
WINDOWS = [(0, 0, 37, 53), (5, 9, 20, 30), (30, 40, 40, 60), (0, 0, 64, 64), (36, 52, 1, 1)]


def runs():
    """Return run lengths that fill the image, a part of it, its last pixel, and nothing."""
    corner, middle = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    corner[-2:, -3:] = 1
    middle[8:20, 20:33] = blob(4, (12, 13))
    bitmaps = [blob(1), np.ones(SIZE, np.uint8), corner, middle, np.zeros(SIZE, np.uint8)]
    return PackedMasks.from_segmentations([encode_bitmap(one) for one in bitmaps], *SIZE, False)


def polygons():
    """Return a square, a comb whose teeth a window separates, and two parts, one outside."""
    square = [10, 8, 30, 8, 30, 20, 10, 20]
    comb = [4, 2, 50, 2, 50, 30, 44, 30, 44, 8, 34, 8, 34, 30, 24, 30, 24, 8, 14, 8, 14, 30, 4, 30]
    parts = [[1.5, 3.2, 20.1, 30.7, 2.4, 33.9], [45, 30, 60, 31, 58, 45]]
    return PackedMasks.from_segmentations([[square], [comb], parts], *SIZE, False)


def cut_bitmaps(bitmaps, top, left, height, width):
    """Crop or pad bitmaps to a window."""
    sides = -left, left + width - bitmaps.shape[2], -top, top + height - bitmaps.shape[1]
    return F.pad(torch.from_numpy(bitmaps.copy()), sides).numpy()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("size", [SIZE, (60, 90), (36, 53)])
def test_run_lengths_are_cropped_like_bitmaps(window, flips, size):
    masks = runs().transformed(*flips, SIZE, size)
    top, left, height, width = window
    window = min(top, size[0] - 1), min(left, size[1] - 1), height, width
    expected = cut_bitmaps(masks.bitmaps(*size).numpy(), *window)
    actual = crop_to_window(masks, *window)
    assert np.array_equal(actual.bitmaps(height, width).numpy(), expected)
    # The result can be transformed and cropped again.
    again = crop_to_window(
        actual.transformed(True, False, (height, width), (height, width)), 0, 0, 9, 9
    )
    assert np.array_equal(
        again.bitmaps(9, 9).numpy(), cut_bitmaps(expected[:, :, ::-1], 0, 0, 9, 9)
    )


def test_windows_may_start_outside():
    masks = PackedMasks.join([polygons().select(torch.tensor([0])), runs()])
    masks = masks.transformed(True, True, SIZE, SIZE)
    expected = cut_bitmaps(masks.bitmaps(*SIZE).numpy(), -7, -11, 30, 80)
    assert expected.any(axis=(1, 2)).tolist() == [True, True, True, True, True, False]
    assert np.array_equal(crop_to_window(masks, -7, -11, 30, 80).bitmaps(30, 80).numpy(), expected)


@pytest.mark.parametrize("flips", [(False, False), (True, True)])
def test_masks_are_placed_like_bitmaps(flips):
    """Place an image of 37 x 53 in one of 48 x 70."""
    masks = PackedMasks.join([polygons(), runs()]).transformed(*flips, SIZE, SIZE)
    expected = np.zeros((len(masks), 48, 70), np.uint8)
    expected[:, :37, :53] = masks.bitmaps(*SIZE).numpy()
    actual = place_masks(masks, SIZE, (48, 70))
    assert np.array_equal(actual.bitmaps(48, 70).numpy(), expected)
    # They are still polygons, except the third, which exceeds the image.
    assert actual.frames.any(dim=1).tolist() == [False, False, *[True] * 6]
    nothing = place_masks(masks.select(torch.zeros(8, dtype=torch.bool)), SIZE, (48, 70))
    assert len(nothing) == 0


@pytest.mark.parametrize("window", WINDOWS[:4])
def test_polygons_are_cropped_like_bitmaps(window):
    masks = polygons()
    actual = crop_to_window(masks, *window)
    assert not actual.frames.any()  # still polygons
    bitmaps = actual.bitmaps(*window[2:]).numpy()
    expected = cut_bitmaps(masks.bitmaps(*SIZE).numpy(), *window)
    # On the border itself, pycocotools rounds clipped corners differently.
    y, x = np.nonzero((bitmaps != expected).any(axis=0))
    bottom, right = min(window[2], SIZE[0] - window[0]), min(window[3], SIZE[1] - window[1])
    border = (y == 0) | (y >= bottom - 1) | (x == 0) | (x >= right - 1)
    assert border.all()
    assert bitmaps[:2].any(axis=(1, 2)).tolist() == expected[:2].any(axis=(1, 2)).tolist()


def test_far_polygons_are_clipped_near_the_window():
    """Corners are farther outside than pycocotools accepts."""
    large = [[-5000.0, -5000, 8000, -5000, 8000, 40, -5000, 20]]
    masks = PackedMasks.from_segmentations([large], 100, 100, False)
    actual = crop_to_window(masks, 10, 20, 50, 60)
    assert -20 < actual.values.min() < actual.values.max() < 80
    bitmap = actual.bitmaps(50, 60)[0]
    # The lower edge runs from (-5000, 20) to (8000, 40): some 27.8 at column 50, less 10.
    assert bitmap[:17].all()
    assert not bitmap[19:].any()


def test_occluded_pixels_are_removed():
    masks = PackedMasks.join([polygons(), runs()])
    hidden = np.zeros(SIZE, bool)
    hidden[4:16, 25:53] = blob(9, (12, 28))
    actual, touched = occlude_masks(masks, hidden)
    before = masks.bitmaps(*SIZE).numpy()
    assert np.array_equal(actual.bitmaps(*SIZE).numpy(), before * ~hidden)
    assert touched.tolist() == (before * hidden).any(axis=(1, 2)).tolist()
    assert touched.tolist()[:4] == [True, True, False, True]
    assert actual.select(torch.tensor([2])).frames.tolist() == [[0] * 6]  # still a polygon


def test_masks_to_boxes_are_tight():
    boxes = masks_to_boxes(PackedMasks.join([polygons(), runs()]), *SIZE)
    assert boxes[:2].tolist() == [[10, 8, 30, 20], [4, 2, 50, 30]]
    assert boxes[4:].tolist() == [[0, 0, 53, 37], [50, 35, 53, 37], *boxes[6:].tolist()]
    assert boxes[7].tolist() == [0, 0, 0, 0]
    assert masks_to_boxes(runs().select(torch.zeros(5, dtype=torch.bool)), *SIZE).shape == (0, 4)
