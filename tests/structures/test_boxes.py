from __future__ import annotations

import pytest
import torch

from detlite.structures import boxes as box_ops


def random_boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 80
    return torch.cat([corner, corner + torch.rand(count, 2) * 40], dim=1)


def iou_of_two(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    intersection = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - intersection
    return intersection / union if union > 0 else 0.0


def test_area():
    boxes = torch.tensor([[0.0, 0, 1, 1], [2, 3, 6, 5], [5, 5, 5, 9], [9, 0, 2, 5]])
    assert box_ops.area(boxes).tolist() == [1, 8, 0, 0]


def test_iou_is_that_of_each_pair():
    a, b = random_boxes(7), random_boxes(9)
    slow = torch.tensor([[iou_of_two(x, y) for y in b.tolist()] for x in a.tolist()])
    torch.testing.assert_close(box_ops.iou(a, b), slow)
    assert (slow > 0.3).any()


def test_iou_of_touching_equal_and_empty_boxes():
    a = torch.tensor([[0.0, 0, 2, 2], [1, 1, 1, 1]])
    b = torch.tensor([[0.0, 0, 2, 2], [2, 0, 4, 2], [1, 1, 1, 1]])
    assert box_ops.iou(a, b).tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_iou_without_boxes(n, m):
    assert box_ops.iou(random_boxes(n), random_boxes(m)).shape == (n, m)


def test_batches_are_images_one_by_one():
    a, b = random_boxes(6).view(2, 3, 4), random_boxes(8).view(2, 4, 4)
    found = box_ops.iou(a, b)
    for image in range(2):
        assert torch.equal(found[image], box_ops.iou(a[image], b[image]))
    for function in (
        box_ops.area,
        lambda boxes: box_ops.mirror(boxes, 60),
        lambda boxes: box_ops.at_least(boxes, 20),
    ):
        assert torch.equal(function(a), torch.stack([function(one) for one in a]))


def test_iou_leaves_its_boxes_alone():
    a, b = random_boxes(3), random_boxes(3)
    before = a.clone(), b.clone()
    box_ops.iou(a, b)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_at_least():
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [0, 0, 0, 9], [9, 0, 2, 9]])
    assert box_ops.at_least(boxes, 4).tolist() == [True, False, False, False]
    assert box_ops.at_least(boxes, 0).tolist() == [True, True, False, False]
    assert box_ops.at_least(torch.full((1, 4), float("nan")), 0).tolist() == [False]


def test_mirror():
    boxes = torch.tensor([[1.0, 2, 4, 8]])
    assert box_ops.mirror(boxes, 10).tolist() == [[6, 2, 9, 8]]
    assert torch.equal(box_ops.mirror(box_ops.mirror(boxes, 10), 10), boxes)


def test_results_keep_the_type():
    boxes = random_boxes(3).double()
    for result in (box_ops.area(boxes), box_ops.iou(boxes, boxes)):
        assert result.dtype == torch.float64
