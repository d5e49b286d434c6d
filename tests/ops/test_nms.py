import math

import pytest
import torch
import torchvision

from detlite.ops import batched_nms, nms
from tests.builders import random_boxes
from tests.ops.oracles import batched_nms as oracle


def distinct_scores(count):
    return torch.randperm(count).float() / count


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 63, 64, 65, 600, 3000])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_nms_matches_torchvision(device, count, threshold):
    boxes = random_boxes(count, extent=count**0.5 * 10).to(device)
    scores = distinct_scores(count).to(device)
    expected = torchvision.ops.nms(boxes, scores, threshold)
    assert torch.equal(nms(boxes, scores, threshold), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 3, 200])
def test_batched_nms_matches_oracle(device, dtype, groups):
    boxes = random_boxes(150, extent=100).to(dtype)
    scores = torch.rand(150).to(dtype)  # half types bring ties
    idxs = torch.randint(-groups, groups, (150,))
    kept = batched_nms(boxes.to(device), scores.to(device), idxs.to(device), 0.4)
    assert torch.equal(kept.cpu(), oracle(boxes, scores, idxs, 0.4))


# The CUDA kernel processes chunks of 2048 boxes, sorted by group.
@pytest.mark.parametrize("sizes", [[2047, 2], [1, 2047, 1], [2000, 30, 100], [60, 4300, 700]])
def test_groups_across_chunks(device, sizes):
    count = sum(sizes)
    idxs = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    idxs = idxs[torch.randperm(count)]
    inputs = random_boxes(count, extent=300.0), distinct_scores(count), idxs
    kept = batched_nms(*(x.to(device) for x in inputs), 0.5)
    assert torch.equal(kept.cpu(), oracle(*inputs, 0.5))


def test_groups_are_floats(device):
    """torchvision accepts them, too."""
    boxes, scores = random_boxes(50).to(device), distinct_scores(50).to(device)
    idxs = torch.randint(-2, 3, (50,), device=device)
    expected = batched_nms(boxes, scores, idxs, 0.3)
    assert torch.equal(batched_nms(boxes, scores, idxs / 2, 0.3), expected)


def test_clusters_are_suppressed_across_chunks(device):
    count = 5000
    centers = torch.rand(30, 2)[torch.randint(0, 30, (count,))] * 1000
    half = 20 + torch.randn(count, 2)
    boxes = torch.cat([centers - half, centers + half], 1).to(device)
    scores = distinct_scores(count).to(device)
    for threshold in (0.3, 0.9):
        expected = torchvision.ops.nms(boxes, scores, threshold)
        assert torch.equal(nms(boxes, scores, threshold), expected)


def test_chains_of_suppression(device):
    # Each box overlaps the next alone, so that every other one stays.
    count = 2300
    left = torch.arange(count, device=device, dtype=torch.float32) * 6
    boxes = torch.stack([left, left * 0, left + 10, left * 0 + 10], 1)
    scores = 1 - torch.arange(count, device=device) / count
    assert nms(boxes, scores, 0.2).tolist() == list(range(0, count, 2))


# Products of the smallest sides lose precision; products of the largest sides are infinite.
@pytest.mark.parametrize("extent", [3e-23, 1e-22, 1e-20, 1e-15, 1e18, 1e19, 1e30])
@pytest.mark.parametrize("threshold", [0.0, 1e-7, 0.4, 0.95])
def test_boxes_of_any_size_match_oracle(device, extent, threshold):
    corner = torch.rand(60, 2) * extent
    boxes = torch.cat([corner, corner + torch.rand(60, 2) * extent], 1)
    boxes = boxes[torch.randint(0, 60, (90,))]
    scores, idxs = distinct_scores(90), torch.randint(0, 2, (90,))
    kept = batched_nms(boxes.to(device), scores.to(device), idxs.to(device), threshold)
    assert torch.equal(kept.cpu(), oracle(boxes, scores, idxs, threshold))


@pytest.mark.parametrize("threshold", [0.25, 1 / 3, 0.5, 0.75])
def test_whole_coordinates_match_oracle(device, threshold):
    # Many overlaps are the threshold itself.
    boxes = random_boxes(200, extent=10.0).div(10).ceil()
    scores, idxs = torch.rand(200), torch.zeros(200).long()
    kept = nms(boxes.to(device), scores.to(device), threshold)
    assert torch.equal(kept.cpu(), oracle(boxes, scores, idxs, threshold))


def test_distant_groups_lose_no_precision(device):
    # Offsetting boxes by group, as is often done, would round these to one another.
    boxes = torch.tensor([[0, 0, 1e-3, 1e-3], [5e-4, 0, 1.5e-3, 1e-3]], device=device)
    scores = torch.tensor([0.9, 0.8], device=device)
    idxs = torch.full((2,), 10**15, device=device)
    assert batched_nms(boxes, scores, idxs, 0.5).tolist() == [0, 1]
    assert batched_nms(boxes, scores, idxs, 0.3).tolist() == [0]


@pytest.mark.parametrize("count", [5, 700])
def test_ties_keep_the_lower_index_first(device, count):
    scores = torch.full((count,), 0.5, device=device)
    same = torch.tensor([[0.0, 0, 10, 10]], device=device).repeat(count, 1)
    assert nms(same, scores, 0.5).tolist() == [0]
    apart = same + torch.arange(count, device=device)[:, None] * 100
    assert nms(apart, scores, 0.5).tolist() == list(range(count))


def test_threshold_itself_is_kept(device):
    # The overlap is exactly one half.
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5]], device=device)
    scores = torch.tensor([0.9, 0.8], device=device)
    assert nms(boxes, scores, 0.5).tolist() == [0, 1]
    assert nms(boxes, scores, math.nextafter(0.5, 0)).tolist() == [0]


@pytest.mark.parametrize("column", range(4))
def test_nan_is_never_kept_and_suppresses_nothing(device, column):
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 60, 60]], device=device)
    boxes[0, column] = torch.nan
    scores = torch.tensor([0.9, 0.8, torch.nan], device=device)
    assert nms(boxes, scores, 0.5).tolist() == [1]
    assert batched_nms(boxes, scores, torch.zeros(3, device=device).long(), 0.5).tolist() == [1]
    assert nms(boxes * torch.nan, scores, 0.5).tolist() == []


def test_strided_inputs_and_other_integers(device):
    boxes = random_boxes(50, extent=100).to(device)
    scores = distinct_scores(50).to(device)
    idxs = torch.randint(0, 4, (50,), device=device)
    expected = batched_nms(boxes, scores, idxs, 0.3)
    strided = torch.stack([scores, scores], 1)[:, 0]
    turned = boxes.t().contiguous().t()
    assert torch.equal(batched_nms(turned, strided, idxs.int(), 0.3), expected)
    assert torch.equal(batched_nms(boxes, scores.double(), idxs, 0.3), expected)
