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
    ("form", "box"),
    [("XYXY", [1, 2, 5, 8]), ("XYWH", [1, 2, 4, 6]), ("CXCYWH", [3, 5, 4, 6])],
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


def test_iou_of_touching_equal_and_empty_boxes():
    a = torch.tensor([[0.0, 0, 2, 2], [1, 1, 1, 1]])
    b = torch.tensor([[0.0, 0, 2, 2], [2, 0, 4, 2], [1, 1, 1, 1]])
    assert box_ops.iou(a, b).tolist() == [[1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_iou_without_boxes(n, m):
    assert box_ops.iou(random_boxes(n), random_boxes(m)).shape == (n, m)


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


def test_inside():
    boxes = torch.tensor([[0.0, 0, 20, 20], [2, 2, 20.5, 9], [2, 2, 21, 9], [-0.5, 2, 9, 9]])
    assert box_ops.inside(boxes, (20, 20), 0, CONTINUOUS).tolist() == [True, False, False, False]
    assert box_ops.inside(boxes, (20, 20), 0.5, CONTINUOUS).tolist() == [True, True, False, True]
    # The last pixel of the second box starts inside the image, the last pixel of the third at the
    # border.
    assert box_ops.inside(boxes, (20, 20), 0, INCLUSIVE).tolist() == [True, True, False, False]


def test_inside_treats_all_borders_alike():
    boxes = torch.tensor(
        [[0.0, 0, 48, 32], [-2, 5, 9, 9], [5, -2, 9, 9], [5, 5, 50, 9], [5, 5, 9, 34]]
    )
    for margin in (0, 1.9):
        assert box_ops.inside(boxes, (32, 48), margin, CONTINUOUS).tolist() == [True, *[False] * 4]
    assert box_ops.inside(boxes, (32, 48), 2, CONTINUOUS).all()


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


def test_rescale_clips_boxes():
    boxes = torch.tensor([[10.0, 20, 30, 60]])
    to_wide = box_ops.rescale(boxes, (100, 100), (100, 200), CONTINUOUS)
    assert to_wide.tolist() == [[20, 20, 60, 60]]
    clipped = box_ops.rescale(boxes, (50, 100), (50, 100), CONTINUOUS)
    assert clipped.tolist() == [[10, 20, 30, 50]]
    unclipped = box_ops.rescale(boxes, (50, 100), (50, 100), CONTINUOUS, clipped=False)
    assert torch.equal(unclipped, boxes)


def test_rescale_moves_the_last_pixel_of_inclusive_boxes():
    boxes = torch.tensor([[10.0, 20, 31, 41]])  # pixels 10 to 30 and 20 to 40
    doubled = box_ops.rescale(boxes, (100, 100), (200, 200), INCLUSIVE)
    assert doubled.tolist() == [[20, 40, 61, 81]]
    assert torch.equal(box_ops.rescale(boxes, (100, 100), (100, 100), INCLUSIVE), boxes)


def test_rescale_does_not_clip_inclusive_boxes():
    boxes = torch.tensor([[0.0, 0, 1066, 800]])
    rescaled = box_ops.rescale(boxes, (800, 1066), (480, 640), INCLUSIVE)
    # The last pixel at 0.6 of its position, plus one pixel.
    expected = torch.tensor([[0, 0, 1065 * 640 / 1066 + 1, 799 * 480 / 800 + 1]])
    torch.testing.assert_close(rescaled, expected)
