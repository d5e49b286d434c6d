"""Random crops, compared with an oracle that decodes every pixel."""

import pytest
import torch

from detlite.data.transforms.crop import RandomCrop, crop_target
from detlite.data.transforms.detection_transform import DetectionTransform
from tests.data.pixel_scenes import FILL, bitmaps_by_pixel, check, scene

SIDE = 40


@pytest.mark.parametrize("size", [(60, 70), (30, 70), (60, 25), (21, 22), (SIDE, SIDE)])
@pytest.mark.parametrize("seed", range(3))
def test_crops_move_pixels_masks_and_boxes_together(size, seed):
    original = scene(0, size, seed)
    torch.manual_seed(seed)
    image, target = RandomCrop(SIDE, FILL)(*original[:2])
    assert image.shape == (3, SIDE, SIDE)
    check(image, target, bitmaps_by_pixel(image, [original]))
    inside = image[2] == 0
    assert inside.sum() == min(size[0], SIDE) * min(size[1], SIDE)
    assert (torch.tensor(FILL) == image[:, ~inside].T).all()
    # Keypoints stay on their pixels.
    before = {int(label): i for i, label in enumerate(original[1]["labels"])}
    shift = image[:2, 0, 0].float()
    for label, points in zip(target["labels"].tolist(), target["keypoints"], strict=True):
        old = original[1]["keypoints"][before[label]]
        assert torch.allclose(points[:, :2] + shift, old[:, :2])
        outside = (points[:, :2] < 0).any(1) | (points[:, :2] >= SIDE).any(1)
        assert torch.equal(points[:, 2], old[:, 2] * ~outside)
    assert (target["image_id"], target["size"]) == (0, size)


def test_padding_of_float_images():
    image, target, _ = scene(0, (20, 30), 0)
    square, _ = RandomCrop(SIDE, FILL)(image.float() / 255, target)
    assert torch.allclose(square[:, -1, -1], torch.tensor(FILL) / 255)
    assert torch.equal(square[:, :20, :30], image.float() / 255)


def test_crops_cover_the_whole_image():
    image, target, _ = scene(0, (43, 70), 0)
    target = {name: target[name] for name in ("boxes", "labels")}
    torch.manual_seed(0)
    corners = [RandomCrop(SIDE, FILL)(image, target)[0][:2, 0, 0].tolist() for _ in range(200)]
    assert {column for column, _ in corners} == set(range(31))
    assert {row for _, row in corners} == set(range(4))


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
    original = scene(0, (60, 70), 3)
    torch.manual_seed(1)
    transform = DetectionTransform(flip=(1.0, 1.0), crop=RandomCrop(SIDE, FILL))
    image, target = transform(*original[:2])
    assert image[0, 0, 0] > image[0, 0, 1]
    assert image[1, 0, 0] > image[1, 1, 0]
    check(image, target, bitmaps_by_pixel(image, [original]))
    assert type(image) is torch.Tensor
