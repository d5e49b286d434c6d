"""Transforms change image, boxes, labels, masks and keypoints consistently."""

import pytest
import torch

from detlite.config import load_config
from detlite.conventions import CONVENTIONS
from detlite.data.transforms.detection_transform import (
    DetectionTransform,
    build_color_jitter,
    build_transform,
    mean_color,
)
from detlite.data.transforms.resize import RandomShortestSize, resize_shortest
from detlite.structures.masks.packed import PackedMasks
from tests.data.pixel_scenes import box_scene


def scene():
    boxes = [[2.0, 4.0, 12.0, 20.0], [30.0, 8.0, 46.0, 16.0]]
    return box_scene(boxes, (32, 48), image_id=5)


@pytest.mark.parametrize("short_side", [32, 64, 16])
@pytest.mark.parametrize("flips", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_boxes_masks_and_pixels_are_consistent(small_cfg, short_side, flips):
    cfg = small_cfg(
        "INPUT.MIN_SIZE_TRAIN", short_side, "INPUT.MAX_SIZE_TRAIN", 200, "INPUT.BRIGHTNESS", 0.0,
        "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", flips[0], "INPUT.VERTICAL_FLIP_PROB_TRAIN", flips[1],
    )  # fmt: skip
    image, before = scene()
    if short_side == 64:
        polygons = [[[2, 4, 12, 4, 12, 20, 2, 20]], [[30, 8, 46, 8, 46, 16, 30, 16]]]
        before["masks"] = PackedMasks.from_segmentations(polygons, 32, 48, as_rle=False)
    boxes = before["boxes"].clone()
    image, target = build_transform(cfg, train=True)(image, before)
    assert torch.equal(before["boxes"], boxes)
    assert image.shape == (3, short_side, short_side * 3 // 2)
    assert type(image) is torch.Tensor
    assert type(target["boxes"]) is torch.Tensor
    assert target["boxes"].dtype == torch.float32
    masks = target["masks"].bitmaps(*image.shape[1:])
    assert target["image_id"] == 5
    assert target["size"] == (32, 48)
    assert target["labels"].tolist() == [1, 2]
    for box, mask in zip(target["boxes"].int().tolist(), masks, strict=True):
        expected = torch.zeros_like(mask)
        expected[box[1] : box[3], box[0] : box[2]] = 1
        assert torch.equal(mask, expected)
    assert torch.equal(masks.any(0), image[0] > 127)
    # The first box was at the left and at the top.
    scale = short_side / 32
    x1 = (48 - 12 if flips[0] else 2) * scale
    y1 = (32 - 20 if flips[1] else 4) * scale
    assert target["boxes"][0, :2].tolist() == [x1, y1]


@pytest.mark.parametrize(
    ("convention", "size", "dtype"),
    [
        ("detlite", (20, 33), torch.uint8),
        ("maskrcnn-benchmark", (20, 32), torch.uint8),
        ("torchvision", (20, 32), torch.float32),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_resize_follows_the_convention(small_cfg, convention, size, dtype, train):
    cfg = small_cfg("MODEL.CONVENTION", convention, "INPUT.MIN_SIZE_TRAIN", 20)
    image = torch.zeros(3, 31, 51, dtype=torch.uint8)
    target = {"boxes": torch.tensor([[10.0, 10, 31, 20]]), "labels": torch.tensor([1])}
    resized, after = build_transform(cfg, train)(image, target)
    assert resized.shape[1:] == size
    assert resized.dtype == dtype
    if convention == "maskrcnn-benchmark":  # the last pixel keeps its size
        width = after["boxes"][0, 2] - after["boxes"][0, 0]
        torch.testing.assert_close(width, torch.tensor(20 * 32 / 51 + 1))


def test_boxes_below_a_pixel_are_dropped_with_labels_and_masks():
    image, target = scene()
    target["boxes"][0] = torch.tensor([47.5, 4.0, 60.0, 20.0])  # half a pixel after clipping
    _, after = DetectionTransform()(image, target)
    assert after["boxes"].tolist() == [[30, 8, 46, 16]]
    assert after["labels"].tolist() == [2]
    masks = target["masks"].bitmaps(32, 48)
    assert torch.equal(after["masks"].bitmaps(32, 48), masks[1:])


def test_targets_may_be_empty_and_without_masks(small_cfg):
    image = torch.zeros(3, 32, 48, dtype=torch.uint8)
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    assert mean_color(small_cfg("INPUT.PIXEL_MEAN", [10, 20, 30])) == (30, 20, 10)
    for train in (True, False):
        resized, after = build_transform(small_cfg(), train)(image, target)
        assert after["boxes"].shape == (0, 4)
        assert "masks" not in after
        assert resized.shape[1] in ((24, 32) if train else (20,))


@pytest.mark.parametrize("key", [("TEST.BBOX_AUG.ENABLED", True), ("TEST.TILE", 20)])
def test_tta_and_tiling_receive_unchanged_images(key):
    image = torch.randint(0, 255, (3, 30, 50), dtype=torch.uint8)
    target = {"boxes": torch.tensor([[2.0, 3, 20, 25]]), "labels": torch.tensor([1])}
    cfg = load_config(None, ["INPUT.MIN_SIZE_TEST", 60, *key])
    same, after = build_transform(cfg, train=False)(image, target)
    assert torch.equal(same, image)
    assert torch.equal(after["boxes"], target["boxes"])
    assert build_transform(cfg, train=True)(image, target)[0].shape != image.shape


KEYPOINT_NAMES = ["nose", "left_ear", "right_ear"]


def keypoint_target(points):
    return {
        "boxes": torch.tensor([[2.0, 3, 20, 25]]),
        "labels": torch.tensor([1]),
        "keypoints": torch.tensor([points]),
    }


@pytest.mark.parametrize(
    ("flips", "expected"),
    [
        ((0.0, 0.0), [[12, 16, 2], [10, 14, 1], [40, 50, 2]]),
        ((1.0, 0.0), [[68, 16, 2], [40, 50, 2], [70, 14, 1]]),
        ((0.0, 1.0), [[12, 44, 2], [40, 10, 2], [10, 46, 1]]),
        ((1.0, 1.0), [[68, 44, 2], [70, 46, 1], [40, 10, 2]]),
    ],
)
def test_keypoints_are_flipped_and_resized(flips, expected):
    resize = RandomShortestSize([60], 1000)
    transform = DetectionTransform(resize, flips, keypoint_names=KEYPOINT_NAMES)
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    _, target = transform(image, keypoint_target([[6.0, 8, 2], [5.0, 7, 1], [20.0, 25, 2]]))
    torch.testing.assert_close(target["keypoints"], torch.tensor([expected]).float())


@pytest.mark.parametrize("flips", [(1.0, 0.0), (0.0, 1.0)])
def test_keypoints_as_pixel_indices(flips):
    resize = RandomShortestSize([60], 1000)
    convention = CONVENTIONS["torchvision"].override(["resize=round"])  # keypoint_center 0
    options = {"keypoint_names": KEYPOINT_NAMES, "convention": convention}
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)  # enlarged to 60 x 80
    centers = keypoint_target([[6.5, 8.5, 2], [5.5, 7.5, 1], [20.5, 25.5, 2]])
    _, unflipped = DetectionTransform(resize, **options)(image, centers)
    assert unflipped["keypoints"].tolist() == [[[12, 16, 2], [10, 14, 1], [40, 50, 2]]]
    _, flipped = DetectionTransform(resize, flips, **options)(image, centers)
    first = [79 - 12, 16, 2] if flips[0] else [12, 59 - 16, 2]
    assert flipped["keypoints"][0, 0].tolist() == first


@pytest.mark.parametrize("short_side", [16, 64])
def test_an_image_read_at_a_reduced_size_has_the_same_target(small_cfg, short_side):
    cfg = small_cfg(
        "INPUT.MIN_SIZE_TRAIN", short_side, "INPUT.MAX_SIZE_TRAIN", 200,
        "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 1.0,
    )  # fmt: skip
    image, target = scene()
    full, half = (
        build_transform(cfg, train=True)(pixels, target) for pixels in (image, image[:, ::2, ::2])
    )
    assert full[0].shape == half[0].shape
    assert torch.equal(full[1]["boxes"], half[1]["boxes"])
    masks = [part[1]["masks"].bitmaps(*full[0].shape[1:]) for part in (full, half)]
    assert torch.equal(*masks)


def test_color_jitter(small_cfg):
    """Pixels change only, and those of other numbers of channels change together."""
    colors = ["INPUT.BRIGHTNESS", 0.4, "INPUT.CONTRAST", 0.4, "INPUT.SATURATION", 0.4]
    cfg = small_cfg("INPUT.MIN_SIZE_TRAIN", 32, *colors, "INPUT.HORIZONTAL_FLIP_PROB_TRAIN", 0.0)
    target, image = scene()[1], torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8)
    jittered, after = build_transform(cfg, train=True)(image, target)
    assert jittered.dtype == torch.uint8
    assert not torch.equal(jittered, image)
    assert after["masks"] is target["masks"]
    cfg = load_config(None, ["INPUT.BRIGHTNESS", 0.5, "INPUT.PIXEL_MEAN", [1.0] * 5,
                             "INPUT.PIXEL_STD", [1.0] * 5])  # fmt: skip
    image = torch.full((5, 4, 4), 100, dtype=torch.uint8)
    torch.manual_seed(0)
    changed = build_color_jitter(cfg)(image)
    assert len(changed.unique()) == 1
    assert changed[0, 0, 0] != 100
    assert resize_shortest(image, 6, 8).shape == (5, 6, 6)
