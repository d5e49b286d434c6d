"""Resizing and augmentation keep image, boxes, labels and masks together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from detlite.config import load_config
from detlite.data.transforms import (
    DetectionTransform,
    RandomShortestSize,
    build_transform,
    get_size,
    resize_shortest,
)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((480, 640), (800, 1067)),
        ((640, 480), (1067, 800)),
        ((427, 640), (800, 1199)),
        ((300, 900), (444, 1333)),  # the long side decides
        ((800, 800), (800, 800)),
        ((1, 5000), (1, 1333)),
        # halfway between two pixels: 666.5, of which the last bit is the framework's
        ((320, 640), (667, 1333)),
        ((44, 88), (666, 1333)),
        ((161, 434), (495, 1333)),
    ],
)
def test_get_size(size, wanted):
    assert get_size(size, 800, 1333) == wanted


@pytest.mark.parametrize(("size", "min_size"), [((47, 64), 80), ((64, 47), 30)])
def test_resizing_is_pillows(size, min_size):
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    found = resize_shortest(image, min_size, 1000)
    height, width = found.shape[1:]
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), 2)
    assert torch.equal(found.permute(1, 2, 0), torch.from_numpy(np.array(picture)))


def test_resize_shortest_keeps_type_and_a_picture_of_the_right_size():
    image = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
    assert resize_shortest(image, 40, 100).shape == (3, 40, 60)
    assert resize_shortest(image, 40, 100).dtype == torch.uint8
    assert torch.equal(resize_shortest(image, 20, 100), image)


def scene():
    """A picture whose two boxes are exactly its two bright rectangles, and so are its masks."""
    image = torch.zeros(3, 32, 48, dtype=torch.uint8)
    masks = torch.zeros(2, 32, 48, dtype=torch.uint8)
    boxes = torch.tensor([[2.0, 4.0, 12.0, 20.0], [30.0, 8.0, 46.0, 16.0]])
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
        image[:, y1:y2, x1:x2] = 255
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}
    return image, {**target, "image_id": 5, "size": (32, 48)}


@pytest.mark.parametrize("short_side", [32, 64, 16])
@pytest.mark.parametrize("flips", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_boxes_masks_and_pixels_move_together(small_cfg, short_side, flips):
    cfg = small_cfg(
        "INPUT.MIN_SIZE_TRAIN", short_side, "INPUT.MAX_SIZE_TRAIN", 200, "INPUT.BRIGHTNESS", 0.0,
        "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", flips[0], "INPUT.VERTICAL_FLIP_PROB_TRAIN", flips[1],
    )  # fmt: skip
    image, before = scene()
    image, target = build_transform(cfg, train=True)(image, before)
    assert image.shape == (3, short_side, short_side * 3 // 2)
    assert type(image) is torch.Tensor
    assert type(target["boxes"]) is torch.Tensor
    assert target["boxes"].dtype == torch.float32
    assert target["masks"].dtype == torch.uint8
    assert target["image_id"] == 5
    assert target["size"] == (32, 48)
    assert target["labels"].tolist() == [1, 2]
    for box, mask in zip(target["boxes"].int().tolist(), target["masks"], strict=True):
        expected = torch.zeros_like(mask)
        expected[box[1] : box[3], box[0] : box[2]] = 1
        assert torch.equal(mask, expected)
    assert torch.equal(target["masks"].any(0), image[0] > 127)
    # The first box was at the left and at the top.
    scale = short_side / 32
    x1 = (48 - 12 if flips[0] else 2) * scale
    y1 = (32 - 20 if flips[1] else 4) * scale
    assert target["boxes"][0, :2].tolist() == [x1, y1]


def test_the_given_target_is_left_alone(small_cfg):
    image, target = scene()
    before = target["boxes"].clone()
    build_transform(small_cfg(), train=True)(image, target)
    assert torch.equal(target["boxes"], before)
    assert type(target["boxes"]) is torch.Tensor


def test_boxes_below_a_pixel_are_dropped_with_labels_and_masks():
    image, target = scene()
    target["boxes"][0] = torch.tensor([47.5, 4.0, 60.0, 20.0])  # half a pixel once clipped
    _, after = DetectionTransform([])(image, target)
    assert after["boxes"].tolist() == [[30, 8, 46, 16]]
    assert after["labels"].tolist() == [2]
    assert torch.equal(after["masks"], target["masks"][1:])


def test_targets_may_be_empty_and_without_masks(small_cfg):
    image = torch.zeros(3, 32, 48, dtype=torch.uint8)
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    for train in (True, False):
        resized, after = build_transform(small_cfg(), train)(image, target)
        assert after["boxes"].shape == (0, 4)
        assert "masks" not in after
        assert resized.shape[1] in ((24, 32) if train else (20,))


def test_every_short_side_is_drawn():
    transform = RandomShortestSize([16, 24, 32], 100)
    torch.manual_seed(0)
    seen = {DetectionTransform([transform])(*scene())[0].shape[1] for _ in range(30)}
    assert seen == {16, 24, 32}


def test_evaluation_is_a_resize_alone(small_cfg):
    image, target = scene()
    resized, after = build_transform(small_cfg(), train=False)(image, target)
    assert torch.equal(resized, resize_shortest(image, 20, 1333))
    assert torch.allclose(after["boxes"], target["boxes"] * 20 / 32)


def test_colour_jitter_changes_pixels_only(small_cfg):
    cfg = small_cfg(
        "INPUT.MIN_SIZE_TRAIN", 32, "INPUT.BRIGHTNESS", 0.4, "INPUT.CONTRAST", 0.4,
        "INPUT.SATURATION", 0.4, "INPUT.HUE", 0.1, "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0,
    )  # fmt: skip
    _, target = scene()
    image = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8)
    jittered, after = build_transform(cfg, train=True)(image, target)
    assert jittered.dtype == torch.uint8
    assert not torch.equal(jittered, image)
    assert torch.equal(after["masks"], target["masks"])


@pytest.mark.parametrize("size", [(31, 17), (7, 90), (20, 30), (1, 1)])
def test_masks_are_sampled_at_pixel_centres(size):
    masks = torch.randint(0, 2, (3, 20, 30), dtype=torch.uint8)
    resized = RandomShortestSize([1], 1).transform(tv_tensors.Mask(masks), {"size": size})
    assert isinstance(resized, tv_tensors.Mask)
    expected = F.resize_image(masks, list(size), F.InterpolationMode.NEAREST_EXACT)
    assert torch.equal(resized.as_subclass(torch.Tensor), expected)


def test_test_time_augmentation_gets_pictures_as_they_are():
    image = torch.randint(0, 255, (3, 30, 50), dtype=torch.uint8)
    target = {"boxes": torch.tensor([[2.0, 3, 20, 25]]), "labels": torch.tensor([1])}
    cfg = load_config(None, ["INPUT.MIN_SIZE_TEST", 60, "TEST.BBOX_AUG.ENABLED", True])
    same, after = build_transform(cfg, train=False)(image, target)
    assert torch.equal(same, image)
    assert torch.equal(after["boxes"], target["boxes"])
    assert build_transform(cfg, train=True)(image, target)[0].shape != image.shape
