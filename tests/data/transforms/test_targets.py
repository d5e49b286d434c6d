"""Crops, compared with parts of the original image and of its bitmaps."""

import pytest
import torch

from detlite.data.transforms.detection_transform import DetectionTransform
from detlite.data.transforms.targets import crop, crop_target
from tests.data.pixel_scenes import check, scene

SIZE = (60, 70)


@pytest.mark.parametrize(
    "window", [(0, 0, 40, 40), (13, 22, 40, 48), (59, 3, 1, 60), (0, 0, *SIZE)]
)
@pytest.mark.parametrize("seed", range(3))
def test_crops_move_pixels_masks_and_boxes_together(window, seed):
    original, before, bitmaps = scene(0, SIZE, seed)
    top, left, height, width = window
    part = (..., slice(top, top + height), slice(left, left + width))
    image, target = crop(original, before, window)
    assert image.is_contiguous()
    assert torch.equal(image, original[part])
    check(image, target, before["labels"], bitmaps[part])
    # Keypoints stay on their pixels.
    shift, limit = torch.tensor([left, top]), torch.tensor([width, height])
    for label, points in zip(target["labels"].tolist(), target["keypoints"], strict=True):
        old = before["keypoints"][label - 1]
        assert torch.allclose(points[:, :2] + shift, old[:, :2])
        outside = (points[:, :2] < 0).any(1) | (points[:, :2] >= limit).any(1)
        assert torch.equal(points[:, 2], old[:, 2] * ~outside)
    assert (target["image_id"], target["size"]) == (0, SIZE)


def test_proposals_are_clipped_or_dropped():
    _, target, _ = scene(0, (60, 70), 0)
    target["proposals"] = torch.tensor([[0.0, 0, 30, 30], [50, 50, 60, 60], [12, 12, 20, 20]])
    cropped = crop_target(target, 10, 10, 20, 30)
    assert cropped["proposals"].tolist() == [[0, 0, 20, 20], [2, 2, 10, 10]]


def test_boxes_without_masks_are_clipped():
    target = {"boxes": torch.tensor([[2.0, 3, 30, 20], [0, 0, 5.5, 9]]), "labels": torch.ones(2)}
    cropped = crop_target(target, 5, 5, 10, 10)
    assert cropped["boxes"].tolist() == [[0, 0, 10, 10]]  # half a pixel of the other one is left
    assert cropped["labels"].tolist() == [1]


def test_crops_of_flipped_images():
    original, before, bitmaps = scene(0, SIZE, 3)
    image, target = crop(*DetectionTransform(flip=(1.0, 1.0))(original, before), (5, 8, 40, 40))
    part = (..., slice(5, 45), slice(8, 48))
    assert torch.equal(image, original.flip(1, 2)[part])
    check(image, target, before["labels"], bitmaps.flip(1, 2)[part])
    assert type(image) is torch.Tensor
