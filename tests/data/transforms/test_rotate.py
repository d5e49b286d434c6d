"""Rotations move image, boxes, masks and keypoints together."""

import numpy as np
import pytest
import torch

from detlite.data.transforms.detection_transform import build_transform
from detlite.data.transforms.rotate import RandomRotation
from detlite.structures.masks.packed import PackedMasks
from tests.data.pixel_scenes import box_scene, tight_boxes

SIZE = (60, 80)
FILL = (10.0, 20.0, 30.0)


def bitmaps():
    """Return masks of an ellipse and a rectangle off the center."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    ellipse = ((x - 30) / 12) ** 2 + ((y - 25) / 6) ** 2 <= 1
    rectangle = (x > 45) & (x < 61) & (y > 30) & (y < 42)
    return torch.from_numpy(np.stack([ellipse, rectangle])).to(torch.uint8)


def scene(polygons=False):
    masks = bitmaps()
    packed = PackedMasks.from_bitmaps(masks)
    if polygons:
        turn = np.linspace(0, 2 * np.pi, 100, endpoint=False)
        ring = np.stack([30 + 12 * np.cos(turn), 25 + 6 * np.sin(turn)], axis=1).ravel().tolist()
        rings = [[ring], [[45, 30, 61, 30, 61, 42, 45, 42]]]
        packed = PackedMasks.from_segmentations(rings, *SIZE, as_rle=False)
    target = {
        "boxes": torch.tensor([[18.0, 19.0, 42.0, 31.0], [45.0, 30.0, 61.0, 42.0]]),
        "labels": torch.tensor([1, 2]),
        "masks": packed,
        "keypoints": torch.tensor([[[30.0, 25.0, 2.0]], [[53.0, 36.0, 1.0]]]),
        "ignored_boxes": torch.tensor([[0.0, 0.0, 20.0, 10.0]]),
        "size": SIZE,
    }
    return masks.any(0).to(torch.uint8).mul(255).expand(3, -1, -1).contiguous(), target


def centers(masks):
    y, x = torch.meshgrid(*(torch.arange(n) + 0.5 for n in masks.shape[1:]), indexing="ij")
    return torch.stack([torch.stack([x[m > 0].mean(), y[m > 0].mean()]) for m in masks])


@pytest.mark.parametrize("polygons", [False, True])
def test_half_turns_are_exact(polygons):
    image, target = scene(polygons)
    turned, after = RandomRotation(180, FILL).rotate(image, target, 180.0)
    inner = (..., slice(1, -1), slice(1, -1))  # rounding fills some pixels of the border
    assert (turned.int() - image.rot90(2, (1, 2)).int())[inner].abs().max() <= 1
    masks = after["masks"].bitmaps(*SIZE)
    expected = bitmaps().rot90(2, (1, 2))
    assert (masks != expected).float().mean() < (0.004 if polygons else 1e-9)
    assert (after["boxes"] - tight_boxes(expected)).abs().max() <= 1
    assert (after["keypoints"][:, 0, :2] - centers(expected)).abs().max() < 1
    assert after["ignored_boxes"][0].tolist() == pytest.approx([60, 50, 80, 60], abs=1e-4)


@pytest.mark.parametrize("polygons", [False, True])
@pytest.mark.parametrize("angle", [-50.0, 17.0, 130.0])
def test_image_masks_boxes_and_keypoints_rotate_together(angle, polygons):
    image, target = scene(polygons)
    turned, after = RandomRotation(180, FILL).rotate(image, target, angle)
    assert turned.shape == image.shape
    masks = after["masks"].bitmaps(*SIZE)
    foreground = turned[0] > 127
    assert (masks.any(0) != foreground).sum() < 0.12 * foreground.sum()
    points = after["keypoints"][after["keypoints"][..., 2] > 0][:, :2]
    inside = [index for index, row in enumerate(after["keypoints"]) if row[0, 2] > 0]
    assert (points - centers(masks[inside])).abs().max() < 2
    assert (after["boxes"] - tight_boxes(masks)).abs().max() <= 1.01
    assert turned[:, 0, 0].tolist() == [10, 20, 30]


def test_boxes_without_masks_enclose_the_rotated_ellipse():
    image, target = scene()
    expected = RandomRotation(45, FILL).rotate(image, target, 30.0)[1]["boxes"][0]
    del target["masks"]
    boxes = RandomRotation(45, FILL).rotate(image, target, 30.0)[1]["boxes"]
    assert (boxes[0] - expected).abs().max() < 1.1
    target["ignored_boxes"] = torch.tensor([[30.0, 20.0, 50.0, 40.0]])
    [region] = RandomRotation(45, FILL).rotate(image, target, 45.0)[1]["ignored_boxes"]
    corners = torch.tensor([40, 30, 40, 30]) + 200**0.5 * torch.tensor([-1, -1, 1, 1])
    assert torch.allclose(region, corners)


def test_objects_that_leave_the_image_are_dropped():
    image, target = box_scene([[18, 19, 42, 31], [70, 50, 80, 60]], SIZE)
    _, after = RandomRotation(90, FILL).rotate(image, target, -60.0)
    assert after["labels"].tolist() == [1]


def test_rotation_of_the_config_is_a_function_of_the_seed(small_cfg):
    cfg = small_cfg("INPUT.ROTATION", 20.0, "INPUT.MIN_SIZE_TRAIN", 60, "INPUT.MAX_SIZE_TRAIN", 200)
    transform = build_transform(cfg, train=True)
    boxes = set()
    for seed in range(8):
        results = []
        for _ in range(2):
            torch.manual_seed(seed)
            results.append(transform(*scene()))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1]["boxes"], results[1][1]["boxes"])
        assert results[0][0].shape == (3, *SIZE)
        boxes.add(tuple(results[0][1]["boxes"].flatten().tolist()))
    assert len(boxes) > 5


def test_float_images_and_other_channels():
    image, target = scene()
    for pixels, fill in ((image[:1], FILL[:1]), (image.float() / 255, FILL)):
        turned, _ = RandomRotation(30, fill).rotate(pixels, target, 30.0)
        assert turned.dtype == pixels.dtype
        assert turned.shape == (len(pixels), 60, 80)
        assert turned[0, 0, 0] == pytest.approx(10 / 255 if turned.is_floating_point() else 10)
