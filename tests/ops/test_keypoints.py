"""heatmap_peaks against torch's interpolation of each map."""

import math
import time

import pytest
import torch
from torch.nn import functional as F

from detlite.ops import heatmap_peaks
from tests.builders import random_boxes


def enlarge(maps, boxes):
    """Yield the definition: each box's maps enlarged [P, height, width], and its pixels' sides."""
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    for own, side in zip(maps, sides, strict=True):
        width, height = side.ceil().int().tolist()
        yield F.interpolate(own[None], size=(height, width), mode="bicubic")[0], side / side.ceil()


def peaks(maps, boxes, device):
    return tuple(x.cpu() for x in heatmap_peaks(maps.to(device), boxes.to(device)))


def check(maps, boxes, device):
    keypoints, scores = peaks(maps, boxes, device)
    equal = []
    for i, (enlarged, pixel) in enumerate(enlarge(maps, boxes)):
        best, index = enlarged.flatten(1).max(dim=1)
        torch.testing.assert_close(scores[i], best, atol=1e-5, rtol=1e-5)
        column, row = ((keypoints[i, :, :2] - boxes[i, :2]) / pixel).floor().long().unbind(1)
        actual = enlarged[torch.arange(len(row)), row, column]
        torch.testing.assert_close(actual, best, atol=1e-5, rtol=1e-5)
        equal += (row * enlarged.shape[2] + column == index).tolist()
        center = torch.stack([column, row], dim=1) + 0.5
        expected = boxes[i, :2] + center * pixel
        torch.testing.assert_close(keypoints[i, :, :2], expected, atol=1e-4, rtol=1e-5)
        assert (keypoints[i, :, 2] == 1).all()
    # Where a summit lies halfway between two pixels, rounding decides which it is. Of maps with few
    # cells, that can be all in a box.
    assert sum(equal) > 0.8 * len(equal)


@pytest.mark.parametrize("size", [(2, 2), (2, 3), (7, 7), (56, 56), (65, 40)])
@pytest.mark.parametrize("extent", [1.0, 20.0, 300.0])
def test_equals_the_peak_of_the_interpolated_map(device, size, extent):
    torch.manual_seed(0)
    check(torch.randn(6, 5, *size), random_boxes(6, extent=50, sides=(0.3, extent)), device)


@pytest.mark.parametrize("cell", [(0, 0), (0, 55), (55, 0), (55, 55), (20, 31)])
def test_peaks_at_the_edges(device, cell):
    maps = torch.zeros(1, 1, 56, 56)
    maps[(0, 0, *cell)] = 5
    for side in (17.5, 56, 100.25):
        check(maps, torch.tensor([[3.0, 4, 3 + side, 4 + side]]), device)


def test_first_of_equal_peaks_wins(device):
    maps = torch.zeros(1, 3, 4, 4)
    maps[0, 1, 1, 3] = maps[0, 1, 2, 0] = 1  # a later column of an earlier row
    maps[0, 2, 3, 1] = maps[0, 2, 3, 2] = 1
    keypoints, scores = peaks(maps, torch.tensor([[0.0, 0, 4, 4]]), device)
    assert keypoints[0, :, :2].tolist() == [[0.5, 0.5], [3.5, 1.5], [1.5, 3.5]]
    assert scores.tolist() == [[0, 1, 1]]


def test_small_and_inverted_boxes_are_one_pixel(device):
    boxes = torch.tensor([[5.0, 6, 5, 6], [5, 6, 5.3, 6.9], [5, 6, 2, 1]])
    check(torch.randn(3, 2, 8, 8), boxes, device)


def test_no_maps_or_boxes(device):
    for shape in ((0, 17, 56, 56), (3, 0, 56, 56)):
        keypoints, scores = peaks(torch.zeros(shape), torch.zeros(shape[0], 4), device)
        assert keypoints.shape == (*shape[:2], 3)
        assert scores.shape == shape[:2]


def test_single_cell(device):
    # Pixels differ by rounding alone.
    maps, boxes = torch.randn(5, 2, 1, 1), random_boxes(5, sides=(0.3, 60))
    keypoints, scores = peaks(maps, boxes, device)
    torch.testing.assert_close(scores, maps[..., 0, 0])
    assert (keypoints[..., :2] > boxes[:, None, :2]).all()
    assert (keypoints[..., :2] < boxes[:, None, 2:].maximum(boxes[:, None, :2] + 1)).all()


def test_huge_boxes_are_fast(device):
    maps = torch.randn(1, 1, 3, 3)
    expected, wanted_scores = peaks(maps, torch.tensor([[0.0, 0, 4096, 10]]), device)
    begin = time.process_time()
    for far in (4097.0, 1e5, 1e9, 3e38):
        keypoints, scores = peaks(maps, torch.tensor([[0.0, 0, far, 10]]), device)
        torch.testing.assert_close(scores, wanted_scores)
        torch.testing.assert_close(
            keypoints[0, 0] / torch.tensor([far / 4096, 1, 1]), expected[0, 0], rtol=1e-3, atol=0
        )
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", range(4))
def test_invalid_coordinates_affect_only_their_axis(device, value, column):
    boxes = torch.tensor([[2.0, 3, 20, 30]]).repeat(2, 1)
    maps = torch.randn(2, 3, 9, 9)
    expected, _ = peaks(maps, boxes, device)
    boxes[1, column] = value
    keypoints, scores = peaks(maps, boxes, device)
    assert torch.equal(keypoints[0], expected[0])
    # Inside out it is one pixel, like any inverted box.
    inverted = (column < 2) == (value > 0)
    finite = keypoints[1, :, column % 2].isfinite()
    assert not finite.any() or (inverted and column >= 2)
    assert keypoints[1, :, 1 - column % 2].isfinite().all()
    assert scores.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_maps_with_nan_have_score_nan(device, value):
    maps = torch.randn(1, 3, 9, 9)
    maps[0, 1, 4, 8] = value
    boxes = torch.tensor([[2.0, 3, 12, 23]])
    keypoints, scores = peaks(maps, boxes, device)
    expected, wanted_scores = peaks(maps.nan_to_num(0, 0, 0), boxes, device)
    assert keypoints[0, 1].tolist() == [2.5, 3.5, 1]
    assert scores[0, 1].isnan()
    assert torch.equal(keypoints[0, ::2], expected[0, ::2])
    assert torch.equal(scores[0, ::2], wanted_scores[0, ::2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_strides_are_computed_in_float32(device, dtype):
    maps, boxes = torch.randn(2, 3, 9, 9).to(dtype), random_boxes(2, sides=(0.3, 60)).to(dtype)
    expected = peaks(maps.float(), boxes.float(), device)
    actual = peaks(maps.contiguous(memory_format=torch.channels_last), boxes, device)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_no_gradient_flows():
    maps = torch.randn(2, 3, 9, 9, requires_grad=True)
    assert not any(x.requires_grad for x in heatmap_peaks(maps, random_boxes(2, sides=(0.3, 60))))
