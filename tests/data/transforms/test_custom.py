"""Custom transforms and pipelines of other libraries move images and targets together."""

from functools import partial

import numpy as np
import pytest
import torch

from detlite.config import ConfigError
from detlite.data.transforms.custom import apply_custom, wrap_albumentations, wrap_torchvision
from tests.data.pixel_scenes import box_scene, tight_boxes

SIZE = (60, 80)


@pytest.fixture
def use():
    """Return what INPUT.TRANSFORMS applies for a transform "mine"."""
    return lambda transform: partial(apply_custom, [("mine", transform)])


def scene():
    image, target = box_scene([[10, 12, 40, 30], [60, 40, 78, 58]], SIZE, image_id=8)
    target["keypoints"] = torch.tensor([[[25.5, 21.5, 2.0]], [[69.5, 49.5, 1.0]]])
    target["ignored_boxes"] = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    return image, target


def check(image, target):
    """Check that every part of the target is where the image shows its object."""
    masks = target["masks"].bitmaps(*image.shape[1:])
    assert len(masks) == len(target["boxes"]) == len(target["labels"]) == len(target["keypoints"])
    assert ((image[0] > 127) != masks.any(0)).float().mean() < 0.02
    assert (target["boxes"] - tight_boxes(masks)).abs().max() <= 1.5
    for mask, points in zip(masks, target["keypoints"], strict=True):
        if points[0, 2]:
            x, y = points[0, :2].int().tolist()
            assert mask[y, x]


def test_a_custom_function(use):
    def shift(image, target):
        return image.flip(0), {**target, "boxes": target["boxes"] + torch.tensor([30.0, 0, 30, 0])}

    image, target = scene()
    _, target = use(shift)(image, {name: target[name] for name in ("boxes", "labels")})
    assert target["boxes"].tolist() == [[40, 12, 70, 30]]  # the other one left the image
    assert target["labels"].tolist() == [1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda image, target: (image[0], target), r"no image \[3, H, W\]"),
        (lambda image, target: (image, {**target, "labels": target["labels"][:1]}), "numbers of"),
        (lambda image, target: (image, {**target, "boxes": target["boxes"] / 0}), "not finite"),
        (lambda image, target: (image, {**target, "boxes": -target["boxes"]}), "not .x1, y1, x2"),
        (lambda image, target: (image.float(), target), "neither uint8 nor float in 0..1"),
        (lambda image, target: (image / 255 / 0.2 - 2.1, target), "neither uint8 nor float"),
        (lambda image, target: (image.long(), target), "int64 that is neither uint8 nor float"),
        (lambda image, target: (image / torch.nan, target), "neither uint8 nor float"),
        (lambda image, target: (image, {**target, "mine": torch.ones(2)}), "the entry 'mine', wh"),
        (
            lambda image, target: (image, {n: target[n] for n in target if n != "masks"}),
            "without its entry 'masks'",
        ),
    ],
)
def test_results_are_checked(use, wrong, message):
    with pytest.raises(ConfigError, match=rf"INPUT.TRANSFORMS: mine returned .*{message}.*id 8"):
        use(wrong)(*scene())


def test_pipelines_of_torchvision(use):
    from torchvision.transforms import v2

    crop = v2.Compose([v2.RandomCrop((50, 50)), v2.SanitizeBoundingBoxes(min_size=2)])
    turn = v2.RandomRotation((90, 90), expand=True)
    torch.manual_seed(1)
    for pipeline in (v2.Resize((90, 120)), turn, crop, v2.ConvertBoundingBoxFormat("CXCYWH")):
        image, target = use(wrap_torchvision(pipeline))(*scene())
        assert type(image) is type(target["boxes"]) is torch.Tensor
        assert target["ignored_boxes"].shape[1] == 4
        check(image, target)


@pytest.mark.slow
def test_pipelines_of_albumentations(use):
    albumentations = pytest.importorskip("albumentations")
    crop, turn = albumentations.RandomCrop(50, 50), albumentations.RandomRotate90(p=1)
    for pipeline in ([crop], [turn], [crop, turn]):
        custom, results = use(wrap_albumentations(pipeline)), []
        for seed in (0, 0, 1, 2, 3):
            torch.manual_seed(seed)
            image, target = custom(*scene())
            results.append(image.tolist())
            check(image, target)
        assert results[0] == results[1]
        assert not all(image == results[0] for image in results)


def test_mirroring_pipelines_are_refused_with_keypoints(use):
    from torchvision.transforms import v2

    custom = use(wrap_torchvision(v2.RandomHorizontalFlip(1.0)))
    with pytest.raises(ConfigError, match="mirrors images, which would exchange left and right"):
        custom(*scene())
    image, target = scene()
    del target["keypoints"]
    image, target = custom(image, target)
    assert np.allclose(target["boxes"][0], [40, 12, 70, 30])


def test_targets_without_masks_and_objects(use):
    from torchvision.transforms import v2

    custom = use(wrap_torchvision(v2.Compose([v2.Resize((30, 40)), v2.SanitizeBoundingBoxes()])))
    image, target = scene()
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    assert custom(image, empty)[1]["boxes"].shape == (0, 4)
    plain = {name: target[name] for name in ("boxes", "labels")}
    assert custom(image, plain)[1]["boxes"][0].tolist() == [5, 6, 20, 15]


def test_albumentations_moves_keypoints_with_their_pixels(use):
    """Flips and rotations count pixels, so a quarter turn would shift centers by a pixel."""
    albumentations = pytest.importorskip("albumentations")
    image = torch.zeros(3, 40, 60, dtype=torch.uint8)
    image[:, 10, 20] = 255
    target = {
        "boxes": torch.tensor([[15.0, 5, 30, 30]]), "labels": torch.tensor([1]),
        "keypoints": torch.tensor([[[20.5, 10.5, 2]]]), "image_id": 8,
    }  # fmt: skip
    for turn in (90, 180, 270):
        rotation = albumentations.Rotate((turn, turn), interpolation=0, p=1)
        moved, after = use(wrap_albumentations([rotation]))(image, target)
        x, y, _ = after["keypoints"][0, 0].tolist()
        assert (x % 1, y % 1) == (0.5, 0.5)
        assert moved[0, int(y), int(x)] == 255
