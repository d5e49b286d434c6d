"""Test box operations, with continuous and with inclusive boxes."""

import math

import pytest
import torch
import torchvision
from torchvision.tv_tensors import BoundingBoxes

from detlite.conventions import CONVENTIONS
from detlite.structures import boxes as box_ops
from tests.builders import random_boxes

CONTINUOUS = CONVENTIONS["detlite"]
INCLUSIVE = CONVENTIONS["maskrcnn-benchmark"]
BOTH = pytest.mark.parametrize("convention", [CONTINUOUS, INCLUSIVE], ids=lambda c: c.name)
SIZES = [(24, 40), (48, 33), (31, 64)]


def batch_of_boxes() -> torch.Tensor:
    """Return boxes [3, 50, 4], many of them beyond the images of SIZES."""
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(3, 50, 2, generator=generator) * 70 - 10
    return torch.cat([low, low + torch.rand(3, 50, 2, generator=generator) * 10], dim=-1)


@pytest.mark.parametrize(
    ("form", "box"), [("XYXY", [1, 2, 5, 8]), ("XYWH", [1, 2, 4, 6]), ("CXCYWH", [3, 5, 4, 6])]
)
def test_formats_of_torchvision(form, box):
    given = BoundingBoxes(torch.tensor([box]), format=form, canvas_size=(10, 10))
    boxes = box_ops.to_xyxy(given)
    assert type(boxes) is torch.Tensor
    assert boxes.tolist() == [[1, 2, 5, 8]]


@pytest.mark.parametrize(
    ("function", "boxes", "expected"),
    [
        (box_ops.area, [[0, 0, 1, 1], [2, 3, 6, 5], [5, 5, 5, 9], [9, 0, 2, 5]], [1, 8, 0, 0]),
        (
            lambda boxes: box_ops.intersection(boxes, torch.tensor([[2.0, 1, 9, 3], [5, 1, 9, 9]])),
            [[0, 0, 4, 4], [0, 0, 2, 2]],
            [[2, 1, 4, 3], [5, 1, 5, 2]],
        ),
        (
            lambda boxes: box_ops.has_min_size(boxes, 4),
            [[0, 0, 4, 4], [0, 0, 4, 3.9], [0, 0, 0, 9], [9, 0, 2, 9], [math.nan] * 4],
            [True, False, False, False, False],
        ),
        (
            lambda boxes: box_ops.has_min_size(boxes, 0),
            [[0, 0, 4, 4], [0, 0, 4, 3.9], [0, 0, 0, 9], [9, 0, 2, 9], [math.nan] * 4],
            [True, True, False, False, False],
        ),
        (lambda boxes: box_ops.flip(boxes, 10), [[1, 2, 4, 8]], [[6, 2, 9, 8]]),
        (
            lambda boxes: box_ops.clip(boxes, (10, 20), CONTINUOUS),
            [[-9, -9, -3, -4], [30, 2, 40, 5], [-2, 3, 25, 30]],
            [[0, 0, 0, 0], [20, 2, 20, 5], [0, 3, 20, 10]],
        ),
        (  # one pixel is left
            lambda boxes: box_ops.clip(boxes, (10, 20), INCLUSIVE),
            [[-9, -9, -3, -4], [30, 2, 40, 5], [-2, 3, 25, 30]],
            [[0, 0, 1, 1], [19, 2, 20, 5], [0, 3, 20, 10]],
        ),
        (  # never reversed
            lambda boxes: box_ops.pooled_region(boxes, INCLUSIVE),
            [[1, 1, 5, 6], [2, 2, 2.5, 9]],
            [[1, 1, 4, 5], [2, 2, 2, 8]],
        ),
    ],
)
def test_operations_of_each_box(function, boxes, expected):
    assert function(torch.tensor(boxes, dtype=torch.float32)).tolist() == expected


def test_iou_equals_torchvision():
    a, b = random_boxes(7), random_boxes(9)
    expected = torchvision.ops.box_iou(a, b)
    torch.testing.assert_close(box_ops.iou(a, b), expected)
    assert (expected > 0.3).any()
    a, b = (
        torch.tensor([[0.0, 0, 2, 2], [1, 1, 1, 1]]),
        torch.tensor([[2.0, 0, 4, 2], [1, 1, 1, 1]]),
    )
    assert box_ops.iou(a, b).tolist() == [[0, 0], [0, 0]]  # touching, and without area
    assert [box_ops.iou(a[:n], b[:m]).shape for n, m in ((0, 2), (2, 0))] == [(0, 2), (2, 0)]


def test_batches_equal_single_images():
    a, b = random_boxes(6).view(2, 3, 4), random_boxes(8).view(2, 4, 4)
    overlaps = box_ops.iou(a, b)
    for image in range(2):
        assert torch.equal(overlaps[image], box_ops.iou(a[image], b[image]))
    for function in (
        box_ops.area,
        lambda boxes: box_ops.flip(boxes, 60),
        lambda boxes: box_ops.has_min_size(boxes, 20),
    ):
        assert torch.equal(function(a), torch.stack([function(boxes) for boxes in a]))


@pytest.mark.parametrize(
    ("margin", "convention", "expected"),
    [
        (0, CONTINUOUS, [True, False, False, False, False, False]),
        (0.5, CONTINUOUS, [True, True, False, True, True, False]),
        # The last pixel of the second box starts inside the image, that of the third at the border.
        (0, INCLUSIVE, [True, True, False, False, False, False]),
    ],
)
def test_inside(margin, convention, expected):
    boxes = torch.tensor(
        [[0.0, 0, 40, 20], [2, 2, 40.5, 9], [2, 2, 41, 9], [-0.5, 2, 9, 9], [2, -0.5, 9, 9],
         [2, 2, 9, 21]]
    )  # fmt: skip
    assert box_ops.inside(boxes, (20, 40), margin, convention).tolist() == expected


@BOTH
def test_images_of_a_batch_have_their_own_sizes(convention):
    boxes, sizes = batch_of_boxes(), torch.tensor(SIZES)
    new_sizes = sizes * 3 // 2
    clipped = box_ops.clip(boxes, sizes, convention)
    inside = box_ops.inside(boxes, sizes, 2.5, convention)
    rescaled = box_ops.rescale(boxes, sizes, new_sizes, convention)
    for image, size in enumerate(SIZES):
        new_size = (int(new_sizes[image, 0]), int(new_sizes[image, 1]))
        own = boxes[image]
        assert torch.equal(clipped[image], box_ops.clip(own, size, convention))
        assert torch.equal(inside[image], box_ops.inside(own, size, 2.5, convention))
        assert 0 < inside[image].sum() < 50
        assert torch.equal(rescaled[image], box_ops.rescale(own, size, new_size, convention))


@BOTH
def test_no_operation_waits_for_the_device(convention):
    """Tensors on the meta device have no values: reading one fails."""
    boxes, sizes = torch.rand(2, 5, 4, device="meta"), torch.ones(2, 2, device="meta").long()
    for size in (sizes, (30, 40)):
        assert box_ops.clip(boxes, size, convention).shape == (2, 5, 4)
        assert box_ops.inside(boxes, size, 1, convention).shape == (2, 5)
        assert box_ops.rescale(boxes, size, (60, 70), convention).shape == (2, 5, 4)


@pytest.mark.parametrize(
    ("convention", "box", "sizes", "expected"),
    [
        (CONTINUOUS, [10, 20, 30, 60], ((100, 100), (100, 200)), [20, 20, 60, 60]),
        (CONTINUOUS, [10, 20, 30, 60], ((50, 100), (50, 100)), [10, 20, 30, 50]),  # clipped
        (INCLUSIVE, [10, 20, 31, 41], ((100, 100), (200, 200)), [20, 40, 61, 81]),  # pixels to 30
        # Not clipped: the last pixel is at 0.6 of its position, plus one pixel.
        (INCLUSIVE, [0, 0, 1066, 800], ((800, 1066), (480, 640)), [0, 0, 640.3996, 480.4]),
    ],
)
def test_rescale(convention, box, sizes, expected):
    boxes = torch.tensor([box], dtype=torch.float32)
    rescaled = box_ops.rescale(boxes, *sizes, convention)
    torch.testing.assert_close(rescaled, torch.tensor([expected], dtype=torch.float32))
    same = box_ops.rescale(boxes, (50, 50), (50, 50), convention, clipped=False)
    assert torch.equal(same, boxes)
