import numpy as np
import pytest
import torch

from detlite.ops import match_boxes
from detlite.structures import boxes as box_ops
from tests.builders import random_boxes

HALVES = [torch.float16, torch.bfloat16]


def anchors(rows, columns, stride=8, sizes=(16, 32)):
    """Boxes [N, 4] in a grid like anchors, so that neighbours have equal overlaps."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    center = torch.stack([x, y], -1).reshape(-1, 1, 2) * float(stride)
    half = torch.tensor(sizes)[:, None] / 2
    return torch.cat([center - half, center + half], -1).reshape(-1, 4)


def from_table(truth, valid, candidates):
    """Match one image by the definition, with the table of overlaps."""
    table = box_ops.iou(truth, candidates).nan_to_num(nan=0)
    table[~valid] = -1
    iou = table.amax(0) if valid.any() else torch.zeros(len(candidates))
    index = table.argmax(0) if valid.any() else torch.full((len(candidates),), -1)
    best = (table == table.amax(1, keepdim=True)) & (table > 0)
    return index, iou, best.any(0)


def assert_matches_table(truth, valid, candidates, device):
    actual = match_boxes(truth.to(device), valid.to(device), candidates.to(device))
    assert [x.dtype for x in actual] == [torch.int64, torch.float32, torch.bool]
    per_image = candidates.expand(len(truth), -1, -1) if candidates.dim() == 2 else candidates
    for b in range(len(truth)):
        for result, expected in zip(
            actual, from_table(truth[b], valid[b], per_image[b]), strict=True
        ):
            assert torch.equal(result[b].cpu(), expected)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("images", "truths", "count"),
    [(1, 1, 1), (2, 3, 17), (3, 16, 64), (2, 17, 65), (1, 300, 20), (2, 5, 130)],
)
def test_matches_the_table_of_overlaps(device, images, truths, count, whole, shared):
    truth = random_boxes(images, truths, sides=(-2, 28))
    valid = torch.rand(images, truths) > 0.3
    valid[1:2] = False  # an image without ground truth
    leading = () if shared else (images,)
    candidates = random_boxes(*leading, count, sides=(-2, 28))
    if whole:  # many overlaps are equal
        truth, candidates = truth.round(), candidates.round()
    assert_matches_table(truth, valid, candidates, device)


@pytest.mark.parametrize("truths", [1, 40, 1100])
def test_candidates_of_several_tiles(device, truths):
    candidates = anchors(30, 33)  # of two tiles
    truth = random_boxes(2, truths, extent=250.0)
    valid = torch.rand(2, truths) > 0.1
    assert_matches_table(truth, valid, candidates, device)


def test_order_of_candidates_does_not_matter(device):
    candidates, truth = anchors(25, 25).to(device), random_boxes(1, 30, extent=200).to(device)
    valid = torch.ones(1, 30, dtype=torch.bool, device=device)
    order = torch.randperm(len(candidates), device=device)
    expected = match_boxes(truth, valid, candidates)
    for result, wanted in zip(match_boxes(truth, valid, candidates[order]), expected, strict=True):
        assert torch.equal(result, wanted[:, order])


def test_equal_overlaps_use_the_lowest_valid_index(device):
    truth = torch.tensor([[[0.0, 0, 10, 10]] * 4], device=device)
    valid = torch.tensor([[False, True, True, True]], device=device)
    candidates = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [50, 50, 60, 60]], device=device)
    index, iou, best = match_boxes(truth, valid, candidates)
    assert index.tolist() == [[1, 1, 1]]
    assert iou.tolist() == [[1.0, 0.5, 0.0]]
    assert best.tolist() == [[True, False, False]]


def test_all_best_candidates_are_marked(device):
    # The object is inside every candidate of one row except the last, which is the farthest.
    candidates = torch.tensor([[0.0, 0, 40, 40]], device=device).repeat(70, 1)
    candidates[:69] += torch.arange(69, device=device)[:, None] / 16
    candidates[69] += 30
    truth = torch.tensor([[[20.0, 20, 30, 30], [500, 500, 510, 510]]], device=device)
    valid = torch.ones(1, 2, dtype=torch.bool, device=device)
    index, iou, best = match_boxes(truth, valid, candidates)
    assert index.tolist() == [[0] * 70]
    assert iou[0, :69].tolist() == [1 / np.float32(16)] * 69
    # The second object overlaps none, and nothing is best for it.
    assert best.tolist() == [[True] * 69 + [False]]


def test_few_valid_among_much_padding(device):
    truth, candidates = random_boxes(3, 700), random_boxes(120, extent=80.0)
    valid = torch.zeros(3, 700, dtype=torch.bool)
    valid[0, [5, 255, 256, 511, 512, 699]] = True
    valid[1, 600:] = True
    truth[~valid] = torch.nan
    candidates[::7, 2] = torch.nan  # next to valid ones
    assert_matches_table(truth, valid, candidates, device)


@pytest.mark.parametrize(
    ("images", "truths", "count"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 0, 0), (0, 0, 0)]
)
@pytest.mark.parametrize("shared", [True, False])
def test_empty_inputs(device, images, truths, count, shared):
    truth = torch.zeros(images, truths, 4, device=device)
    valid = torch.ones(images, truths, dtype=torch.bool, device=device)
    shape = (count, 4) if shared else (images, count, 4)
    index, iou, best = match_boxes(truth, valid, torch.zeros(shape, device=device))
    assert index.shape == iou.shape == best.shape == (images, count)
    assert (index == (0 if truths else -1)).all()
    assert not iou.any()
    assert not best.any()


@pytest.mark.parametrize("column", range(4))
def test_nan_overlaps_nothing(device, column):
    box = torch.tensor([0.0, 0, 10, 10])
    bad = box.clone()
    bad[column] = torch.nan
    truth, candidates = torch.stack([bad, box])[None], torch.stack([bad, box, bad, box])
    valid = torch.ones(1, 2, dtype=torch.bool)
    assert_matches_table(truth, valid, candidates, device)
    index, iou, best = match_boxes(truth.to(device), valid.to(device), candidates.to(device))
    assert index.tolist() == [[0, 1, 0, 1]]
    assert iou.tolist() == [[0.0, 1.0, 0.0, 1.0]]
    assert best.tolist() == [[False, True, False, True]]
    # Alone, it is still the image's only object.
    assert_matches_table(bad[None, None], valid[:, :1], truth[0], device)


def test_degenerate_and_infinite_boxes(device):
    inf = torch.inf
    odd = [[-inf, -inf, inf, inf], [5, 5, 5, 5], [9, 9, 1, 1], [9, 0, 1, 10], [0, 0, 10, 10]]
    odd += [[0, 0, inf, 10], [inf, inf, inf, inf], [0, 0, 3e38, 3e38], [0, 0, 1e-30, 1e-30]]
    boxes = torch.tensor([*odd, [-0.0, 2, 7, 9]])
    valid = torch.ones(1, len(boxes), dtype=torch.bool)
    assert_matches_table(boxes[None], valid, boxes, device)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_other_types_and_layouts(device, dtype):
    truth, candidates = random_boxes(2, 9).to(device, dtype), random_boxes(2, 40).to(device, dtype)
    valid = torch.rand(2, 9, device=device) > 0.3
    expected = match_boxes(truth.float(), valid, candidates.float())
    turned = candidates.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.stack([valid, ~valid], -1)[..., 0]
    for result, wanted in zip(match_boxes(truth, spread, turned), expected, strict=True):
        assert torch.equal(result, wanted)
