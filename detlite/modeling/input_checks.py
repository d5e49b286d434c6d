"""Checks of what a model is given, on the host, with messages that name the image and the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detlite.structures.masks.packed import PackedMasks

Target = dict[str, Any]


def check_images(images: Sequence[Tensor]) -> None:
    """Raises TypeError or ValueError, naming the image, for what the model cannot take."""
    if isinstance(images, Tensor) or not isinstance(images, (list, tuple)):
        raise TypeError(f"images must be a list of tensors [3, H, W], not {type(images).__name__}")
    if not images:
        raise ValueError("images is empty: give at least one tensor [3, H, W]")
    for index, image in enumerate(images):
        if not isinstance(image, Tensor) or not (
            image.dtype == torch.uint8 or image.is_floating_point()
        ):
            found = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise TypeError(f"images[{index}] must be a uint8 or float tensor, not {found}")
        if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
            raise ValueError(
                f"images[{index}] must be [3, H, W] (RGB) with H, W > 0, not {list(image.shape)}"
            )


def check_proposals(proposals: Sequence[Tensor | None] | None, count: int) -> list[Tensor]:
    """The boxes given with each of `count` images; see `prepare_proposals`."""
    if proposals is None:
        raise ValueError(
            "the model has no RPN and needs proposals: `proposals` in each target, or "
            "model.detect(images, proposals)"
        )
    if len(proposals) != count:
        raise ValueError(f"{count} images, but proposals of {len(proposals)}")
    checked = []
    for index, boxes in enumerate(proposals):
        if not isinstance(boxes, Tensor):
            found = "missing" if boxes is None else type(boxes).__name__
            raise TypeError(f"proposals of image {index} must be a tensor [P, 4], not {found}")
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"proposals of image {index} must be [P, 4], not {list(boxes.shape)}")
        if not boxes.isfinite().all():
            raise ValueError(f"proposals of image {index} must be finite")
        checked.append(boxes)
    return checked


def check_targets(
    targets: Sequence[Target] | None,
    images: Sequence[Tensor],
    num_classes: int,
    needs: Sequence[str],
    soft_masks: bool,
) -> list[Target]:
    """Targets with nothing but the needed fields, masks packed; see `prepare_targets`."""
    if targets is None:
        raise ValueError("training needs targets: model(images, targets)")
    if len(targets) != len(images):
        raise ValueError(f"{len(images)} images, but {len(targets)} targets")
    checked = [
        _checked(f"targets[{index}]", target, image, num_classes, needs, soft_masks)
        for index, (target, image) in enumerate(zip(targets, images, strict=True))
    ]
    for index, target in enumerate(checked if "keypoints" in needs else []):
        first, own = checked[0]["keypoints"].shape[1], target["keypoints"].shape[1]
        if own != first:
            raise ValueError(
                f"targets[{index}]['keypoints'] has {own} keypoints an instance, but targets[0] "
                f"has {first}"
            )
    return checked


def _checked(
    where: str,
    target: Target,
    image: Tensor,
    num_classes: int,
    needs: Sequence[str],
    soft_masks: bool,
) -> Target:
    if not isinstance(target, dict):
        raise TypeError(f"{where} must be a dict of tensors, not {type(target).__name__}")
    needed = ["boxes", "labels", *needs]
    missing = [name for name in needed if name not in target]
    if missing:
        raise ValueError(f"{where} has no {' and no '.join(missing)}")
    for name in needed:
        packed = name == "masks" and isinstance(target[name], PackedMasks)
        if not packed and not isinstance(target[name], Tensor):
            found = type(target[name]).__name__
            raise TypeError(f"{where}['{name}'] must be a tensor, not {found}")
    boxes, labels = target["boxes"], target["labels"]
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{where}['boxes'] must be [G, 4], not {list(boxes.shape)}")
    if labels.shape != boxes.shape[:1]:
        raise ValueError(f"{where}: {len(boxes)} boxes, but labels of shape {list(labels.shape)}")
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if len(labels) and not integers:  # torch.tensor([]) is float32
        raise TypeError(f"{where}['labels'] must be integers, not {labels.dtype}")
    corners = boxes.float()  # as the model has them: a thin side of float64 may have no extent
    # NaN fails the comparison as well.
    if not (corners[:, 2:] > corners[:, :2]).all() or not corners.isfinite().all():
        raise ValueError(f"{where}['boxes'] must be finite xyxy with x2 > x1 and y2 > y1")
    if len(labels) and not (int(labels.min()) >= 1 and int(labels.max()) < num_classes):
        raise ValueError(
            f"{where}['labels'] must lie in 1..{num_classes - 1} "
            f"(NUM_CLASSES is {num_classes} with background)"
        )
    checked = {"boxes": boxes, "labels": labels}
    if "masks" in needs:
        checked["masks"] = _packed(where, target["masks"], len(boxes), image, soft_masks)
    if "keypoints" in needs:
        keypoints = target["keypoints"]
        if keypoints.ndim != 3 or (len(keypoints), keypoints.shape[2]) != (len(boxes), 3):
            raise ValueError(
                f"{where}['keypoints'] must be [{len(boxes)}, K, 3] for its boxes, not "
                f"{list(keypoints.shape)}"
            )
        checked["keypoints"] = keypoints
    return checked


def _packed(
    where: str, masks: Tensor | PackedMasks, count: int, image: Tensor, soft: bool
) -> PackedMasks:
    """The masks of an image as run lengths or polygons, on the CPU."""
    size = list(image.shape[1:])
    if isinstance(masks, Tensor):
        if masks.shape != (count, *size):
            raise ValueError(
                f"{where}['masks'] must be {[count, *size]} for its boxes and image, not "
                f"{list(masks.shape)}"
            )
        return PackedMasks.from_bitmaps(masks if masks.dtype == torch.bool else masks != 0)
    masks = masks.to("cpu")
    if len(masks) != count:
        raise ValueError(f"{where}['masks'] has {len(masks)} masks for {count} boxes")
    runs = masks.frames[:, 0] > 0
    if (masks.frames[runs, 4:] != torch.tensor(size)).any():
        raise ValueError(f"{where}['masks'] does not belong to its image of size {size}")
    if soft and not runs.all():
        raise ValueError(
            f"{where}['masks'] holds polygons, but a model of torchvision's convention is trained "
            "on bitmaps: PackedMasks.from_segmentations(..., as_runs=True)"
        )
    return masks
