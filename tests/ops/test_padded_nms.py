import math

import pytest
import torch

from detlite.ops import batched_nms, padded_nms
from tests.builders import random_boxes
from tests.ops.oracles import batched_nms as oracle


def random_case(images, count, groups=3, dtype=torch.float32):
    """Boxes, scores (some equal, some negative), groups and which are valid."""
    scores = torch.randint(-20, 20, (images, count)).to(dtype) / 8
    labels = torch.randint(-groups, groups, (images, count))
    return random_boxes(images, count).to(dtype), scores, labels, torch.rand(images, count) > 0.2


def assert_matches_oracle(case, threshold, limit, device):
    index, kept = padded_nms(*(x.to(device) for x in case), threshold, limit)
    assert index.dtype == torch.int64
    assert kept.dtype == torch.bool
    *inputs, valid = case
    for b, (chosen,) in enumerate(map(torch.where, valid)):
        wanted = chosen[oracle(*(x[b, chosen] for x in inputs), threshold)][:limit].tolist()
        padding = limit - len(wanted)
        assert index[b].tolist() == wanted + [0] * padding
        assert kept[b].tolist() == [True] * len(wanted) + [False] * padding


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize(
    ("images", "count", "dtype"),
    [
        (1, 1, torch.float64), (3, 17, torch.float16), (2, 64, torch.bfloat16),
        (4, 65, torch.float32), (2, 200, torch.float32),
    ],
)  # fmt: skip
def test_matches_oracle(device, images, count, threshold, dtype):
    case = random_case(images, count, dtype=dtype)
    case[3][1:2] = False  # an image with only padding
    assert_matches_oracle(case, threshold, 50, device)


@pytest.mark.parametrize("limit", [0, 1, 63, 64, 65, 130, 300])
def test_limits_below_and_above_the_number_of_boxes(device, limit):
    boxes, scores, groups, valid = random_case(2, 130, groups=100)
    assert_matches_oracle((boxes, scores, groups, valid), 0.9, limit, device)


@pytest.mark.parametrize("groups", [1, 80])
def test_equals_batched_nms_of_each_image(device, groups):
    boxes, scores = random_boxes(2, 2500, extent=400.0).to(device), torch.rand(2, 2500).to(device)
    labels = torch.randint(0, groups, (2, 2500), device=device)
    valid = torch.rand(2, 2500, device=device) > 0.1
    index, kept = padded_nms(boxes, scores, labels, valid, 0.5, 2500)
    for b in range(2):
        (chosen,) = torch.where(valid[b])
        expected = batched_nms(boxes[b, chosen], scores[b, chosen], labels[b, chosen], 0.5)
        assert torch.equal(index[b, kept[b]], chosen[expected])
        assert kept[b].tolist() == [True] * len(expected) + [False] * (2500 - len(expected))
        assert not index[b, ~kept[b]].any()


def test_any_score_except_nan_may_be_kept(device):
    inf = math.inf
    scores = torch.tensor([[-inf, 0.0, -3, math.nan, inf, -inf, -0.0]], device=device)
    boxes = torch.tensor([[[0.0, 0, 10, 10]]], device=device).repeat(1, 7, 1)
    boxes += 100 * torch.arange(7, device=device)[None, :, None]
    groups, valid = torch.zeros(1, 7).long().to(device), torch.ones(1, 7).bool().to(device)
    index, kept = padded_nms(boxes, scores, groups, valid, 0.5, 8)
    assert index.tolist() == [[4, 1, 6, 2, 0, 5, 0, 0]]
    assert kept.tolist() == [[True] * 6 + [False] * 2]


@pytest.mark.parametrize("column", [None, 0, 1, 2, 3])
def test_padding_and_nan_suppress_nothing(device, column):
    boxes = torch.tensor([[[0.0, 0, 10, 10]] * 3], device=device)
    valid = torch.tensor([[True, True, False]], device=device)
    scores = torch.tensor([[0.9, 0.5, 1.0]], device=device)
    if column is None:
        scores[0, 0] = torch.nan
    else:
        boxes[0, 0, column] = torch.nan
    groups = torch.full((1, 3), -(10**15), device=device)
    index, kept = padded_nms(boxes, scores, groups, valid, 0.0, 2)
    assert index.tolist() == [[1, 0]]
    assert kept.tolist() == [[True, False]]


@pytest.mark.parametrize(("images", "count", "limit"), [(0, 5, 3), (2, 0, 3), (2, 5, 0), (0, 0, 0)])
def test_empty_inputs(device, images, count, limit):
    case = (x.to(device) for x in random_case(images, count))
    index, kept = padded_nms(*case, 0.5, limit)
    assert index.shape == kept.shape == (images, limit)
    assert not kept.any()
    assert not index.any()


def test_strided_inputs_and_other_integers(device):
    boxes, scores, groups, valid = (x.to(device) for x in random_case(2, 50))
    expected = padded_nms(boxes, scores, groups, valid, 0.3, 40)
    turned = boxes.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.stack([valid, ~valid], -1)[..., 0]
    actual = padded_nms(turned, scores.double(), groups.to(torch.int8), spread, 0.3, 40)
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])
