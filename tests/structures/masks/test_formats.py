"""Segmentations of every form, and pasting against two oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec
from torch.nn import functional as F

from detlite.ops import paste_masks
from detlite.structures.masks.formats import (
    encode_bitmap,
    paste_probabilities,
    polygons_to_rle,
    to_bitmap,
)

SIZE = (20, 24)  # height, width
# Inside; across each border; outside; tiny; of fractional sides; without height; the whole image.
BOXES = torch.tensor(
    [
        [3.0, 4, 15, 12],
        [-6, -5, 8, 9],
        [18, 15, 40, 33],
        [30, 30, 40, 40],
        [-9, -9, -2, -2],
        [5.2, 6.1, 5.9, 6.4],
        [2.3, 3.7, 19.9, 18.2],
        [4, 7, 12, 7],
        [0, 0, 24, 20],
    ]
)


# ---- forms of a segmentation


def test_polygon_covers_its_pixels():
    bitmap = to_bitmap([[2, 1, 6, 1, 6, 4, 2, 4]], 8, 10)
    wanted = np.zeros((8, 10), np.uint8)
    wanted[1:4, 2:6] = 1
    assert bitmap.dtype == np.uint8
    assert np.array_equal(bitmap, wanted)


def test_polygons_of_one_object_are_united():
    parts = [[0, 0, 3, 0, 3, 3, 0, 3], [2, 2, 6, 2, 6, 6, 2, 6]]
    united = to_bitmap(parts, 8, 8)
    assert np.array_equal(united, to_bitmap(parts[:1], 8, 8) | to_bitmap(parts[1:], 8, 8))


@pytest.mark.parametrize("far", [77.0, 1e9, 1e300, float("inf"), float("nan")])
def test_polygons_far_outside_are_refused_before_they_take_memory(far):
    for ring in ([1, 1, far, 1, far, 9], [1, 1, 9, -far, 9, 9]):
        with pytest.raises(ValueError, match="too far out of an image of 12x8"):
            polygons_to_rle([[1, 1, 5, 1, 5, 5], ring], 8, 12)


def test_polygons_may_overhang():
    bitmap = to_bitmap([[-64, -64, 76, -64, 76, 76, -64, 76]], 8, 12)
    assert bitmap.all()


def test_run_lengths_go_down_the_columns():
    # 3 zeros, 2 ones, 7 zeros in a picture 4 high, 3 wide
    bitmap = to_bitmap({"size": [4, 3], "counts": [3, 2, 7]}, 4, 3)
    assert bitmap.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_compressed_run_lengths(as_bytes):
    bitmap = (np.random.default_rng(0).random((9, 7)) > 0.5).astype(np.uint8)
    rle = encode_bitmap(bitmap)
    if as_bytes:
        rle = {"size": rle["size"], "counts": rle["counts"].encode()}
    assert np.array_equal(to_bitmap(rle, 9, 7), bitmap)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int64])
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_encoded_bitmap_survives_json(dtype, density):
    bitmap = (np.random.default_rng(0).random((6, 11)) < density).astype(dtype)
    rle = json.loads(json.dumps(encode_bitmap(bitmap)))
    assert rle["size"] == [6, 11]
    assert np.array_equal(to_bitmap(rle, 6, 11), bitmap)
    assert rle_codec.area(rle) == bitmap.sum()


# ---- pasting


def paste_slowly(prob: torch.Tensor, box: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Each pixel by itself: bilinear between the four nearest cell centres, zeros around."""
    cells = prob.shape[-1]
    x1, y1, x2, y2 = box.double().tolist()
    grid = F.pad(prob.double(), (1, 1, 1, 1))  # a ring of zeros
    image = torch.zeros(size, dtype=torch.float64)
    if x2 <= x1 or y2 <= y1:
        return image
    for row in range(size[0]):
        for column in range(size[1]):
            y = (row + 0.5 - y1) / (y2 - y1) * cells - 0.5 + 1  # in cells of the padded grid
            x = (column + 0.5 - x1) / (x2 - x1) * cells - 0.5 + 1
            if not (0 < y < cells + 1 and 0 < x < cells + 1):
                continue
            top, left = int(y), int(x)
            down, right = y - top, x - left
            image[row, column] = (
                (1 - down) * (1 - right) * grid[top, left]
                + (1 - down) * right * grid[top, left + 1]
                + down * (1 - right) * grid[top + 1, left]
                + down * right * grid[top + 1, left + 1]
            )
    return image


def paste_by_grid_sample(
    prob: torch.Tensor, box: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Detectron2's way: sample the mask at every pixel's centre."""
    x1, y1, x2, y2 = box.tolist()
    y = ((torch.arange(size[0]) + 0.5 - y1) / (y2 - y1) * 2 - 1)[:, None].expand(size)
    x = ((torch.arange(size[1]) + 0.5 - x1) / (x2 - x1) * 2 - 1)[None, :].expand(size)
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(prob[None, None], grid[None], align_corners=False)[0, 0]


@pytest.mark.parametrize("cells", [1, 7, 28])
def test_paste_is_bilinear_pixel_by_pixel(cells):
    boxes = BOXES[BOXES[:, 3] > BOXES[:, 1]]
    probs = torch.rand(len(boxes), cells, cells)
    pasted = paste_probabilities(probs, boxes, SIZE)
    assert pasted.shape == (len(boxes), *SIZE)
    assert pasted.dtype == torch.float32
    for image, prob, box in zip(pasted, probs, boxes, strict=True):
        slow = paste_slowly(prob, box, SIZE)
        torch.testing.assert_close(image.double(), slow, atol=2e-5, rtol=0)


@pytest.mark.parametrize("cells", [7, 28])
def test_paste_is_grid_sample(cells):
    boxes = BOXES[BOXES[:, 3] > BOXES[:, 1]]
    probs = torch.rand(len(boxes), cells, cells)
    for image, prob, box in zip(paste_probabilities(probs, boxes, SIZE), probs, boxes, strict=True):
        torch.testing.assert_close(image, paste_by_grid_sample(prob, box, SIZE), atol=2e-4, rtol=0)


def test_full_mask_fills_its_box():
    pasted = paste_probabilities(torch.ones(1, 28, 28), torch.tensor([[4.0, 6, 12, 15]]), SIZE)[0]
    inside = torch.zeros(SIZE, dtype=torch.bool)
    inside[6:15, 4:12] = True
    assert (pasted[inside] > 0.5).all()
    assert (pasted[~inside] < 0.5).all()


def test_boxes_outside_the_image_leave_nothing():
    assert paste_probabilities(torch.ones(2, 28, 28), BOXES[3:5], SIZE).sum() == 0


@pytest.mark.parametrize("box", [[4.0, 7, 12, 7], [4, 7, 4, 12], [4, 7, 4, 7], [9, 9, 3, 3]])
def test_box_without_area_is_finite_and_small(box):
    pasted = paste_probabilities(torch.ones(1, 28, 28), torch.tensor([box]), SIZE)
    assert pasted.isfinite().all()
    assert (pasted > 0).sum() <= 24


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_rle_is_the_thresholded_paste(threshold):
    probs = torch.rand(len(BOXES), 28, 28)
    rles = paste_masks(probs, BOXES, SIZE, threshold)
    wanted = (paste_probabilities(probs, BOXES, SIZE) >= threshold).numpy()
    assert wanted.any()
    for rle, mask in zip(rles, wanted, strict=True):
        assert isinstance(rle["counts"], str)
        assert np.array_equal(to_bitmap(rle, *SIZE), mask)


def test_paste_without_masks():
    assert paste_probabilities(torch.zeros(0, 28, 28), torch.zeros(0, 4), SIZE).shape == (0, *SIZE)
    assert paste_masks(torch.zeros(0, 28, 28), torch.zeros(0, 4), SIZE) == []


def test_autocast_does_not_move_edges():
    probs = torch.rand(len(BOXES), 28, 28)
    plain = paste_probabilities(probs, BOXES, SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(paste_probabilities(probs, BOXES, SIZE), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_paste_of_other_types_computes_in_float32(dtype):
    probs = torch.rand(len(BOXES), 14, 14).to(dtype)
    wanted = paste_probabilities(probs.float(), BOXES, SIZE)
    assert torch.equal(paste_probabilities(probs, BOXES, SIZE), wanted)
    assert paste_masks(probs, BOXES, SIZE) == paste_masks(probs.float(), BOXES, SIZE)
