"""Check images, targets and proposals on the CPU. Messages name the image and the field."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detlite.structures.masks.packed import PackedMasks

Target = dict[str, Any]


def check_images(images: Sequence[Tensor]) -> None:
    """Raise a TypeError or ValueError, naming the image, if a model cannot take the images."""
    if isinstance(images, Tensor) or not isinstance(images, (list, tuple)):
        raise TypeError(f"images must be a list of tensors [3, H, W], not {type(images).__name__}")
    if not images:
        raise ValueError("images is empty: give at least one tensor [3, H, W]")
    for index, image in enumerate(images):
        if not isinstance(image, Tensor) or not (
            image.dtype == torch.uint8 or image.is_floating_point()
        ):
            kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise TypeError(f"images[{index}] must be a uint8 or float tensor, not {kind}")
        if image.ndim != 3 or image.shape[0] != 3 or 0 in image.shape:
            raise ValueError(
                f"images[{index}] must be [3, H, W] (RGB) with H, W > 0, not {list(image.shape)}"
            )


def check_proposals(proposals: Sequence[Tensor | None] | None, count: int) -> list[Tensor]:
    """Return the proposals of `count` images if they are valid; see `prepare_proposals`."""
    if proposals is None:
        raise ValueError(
            "the model has no RPN and needs proposals: `proposals` in each target, or "
            "model.detect(images, proposals)"
        )
    if len(proposals) != count:
        raise ValueError(f"there are {count} images, but proposals for {len(proposals)}")
    checked = []
    for index, boxes in enumerate(proposals):
        if not isinstance(boxes, Tensor):
            kind = "missing" if boxes is None else type(boxes).__name__
            raise TypeError(f"proposals of image {index} must be a tensor [P, 4], not {kind}")
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
    required: Sequence[str],
    soft_masks: bool,
) -> list[Target]:
    """Return targets with the required fields only, masks packed; see `prepare_targets`."""
    if targets is None:
        raise ValueError("training needs targets: model(images, targets)")
    if len(targets) != len(images):
        raise ValueError(f"there are {len(images)} images, but {len(targets)} targets")
    checked = [
        _check_target(f"targets[{index}]", target, image, num_classes, required, soft_masks)
        for index, (target, image) in enumerate(zip(targets, images, strict=True))
    ]
    if "keypoints" in required:
        counts = [target["keypoints"].shape[1] for target in checked]
        for index, count in enumerate(counts):
            if count != counts[0]:
                raise ValueError(
                    f"targets[{index}]['keypoints'] has {count} keypoints per instance, but "
                    f"targets[0] has {counts[0]}"
                )
    return checked


def _check_target(
    name: str,
    target: Target,
    image: Tensor,
    num_classes: int,
    required: Sequence[str],
    soft_masks: bool,
) -> Target:
    if not isinstance(target, dict):
        raise TypeError(f"{name} must be a dict of tensors, not {type(target).__name__}")
    fields = ["boxes", "labels", *required]
    missing = [field for field in fields if field not in target]
    if missing:
        raise ValueError(f"{name} has no {' and no '.join(missing)}")
    for field in fields:
        packed = field == "masks" and isinstance(target[field], PackedMasks)
        if not packed and not isinstance(target[field], Tensor):
            kind = type(target[field]).__name__
            raise TypeError(f"{name}['{field}'] must be a tensor, not {kind}")
    boxes, labels = target["boxes"], target["labels"]
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name}['boxes'] must be [G, 4], not {list(boxes.shape)}")
    if labels.shape != boxes.shape[:1]:
        raise ValueError(f"{name}: {len(boxes)} boxes, but labels of shape {list(labels.shape)}")
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if len(labels) and not integers:  # torch.tensor([]) is float32
        raise TypeError(f"{name}['labels'] must be integers, not {labels.dtype}")
    corners = boxes.float()  # the model's type, in which a thin float64 box may be empty
    # NaN fails the comparison as well.
    if not (corners[:, 2:] > corners[:, :2]).all() or not corners.isfinite().all():
        raise ValueError(f"{name}['boxes'] must be finite xyxy with x2 > x1 and y2 > y1")
    if len(labels) and not (int(labels.min()) >= 1 and int(labels.max()) < num_classes):
        raise ValueError(
            f"{name}['labels'] must be in 1..{num_classes - 1} "
            f"(NUM_CLASSES is {num_classes} with background)"
        )
    checked = {"boxes": boxes, "labels": labels}
    if "masks" in required:
        checked["masks"] = _check_masks(name, target["masks"], len(boxes), image, soft_masks)
    if "keypoints" in required:
        keypoints = target["keypoints"]
        if keypoints.ndim != 3 or (len(keypoints), keypoints.shape[2]) != (len(boxes), 3):
            raise ValueError(
                f"{name}['keypoints'] must be [{len(boxes)}, K, 3] for its boxes, not "
                f"{list(keypoints.shape)}"
            )
        checked["keypoints"] = keypoints
    return checked


def _check_masks(
    name: str, masks: Tensor | PackedMasks, count: int, image: Tensor, soft: bool
) -> PackedMasks:
    """Return the masks of an image as run lengths or polygons on the CPU."""
    size = list(image.shape[1:])
    if isinstance(masks, Tensor):
        if masks.shape != (count, *size):
            raise ValueError(
                f"{name}['masks'] must be {[count, *size]} for its boxes and image, not "
                f"{list(masks.shape)}"
            )
        return PackedMasks.from_bitmaps(masks if masks.dtype == torch.bool else masks != 0)
    masks = masks.to("cpu")
    if len(masks) != count:
        raise ValueError(f"{name}['masks'] has {len(masks)} masks for {count} boxes")
    runs = masks.frames[:, 0] > 0
    if (masks.frames[runs, 4:] != torch.tensor(size)).any():
        raise ValueError(f"{name}['masks'] does not have the size {size} of its image")
    if soft and not runs.all():
        raise ValueError(
            f"{name}['masks'] holds polygons, but a model of torchvision's convention is trained "
            "on bitmaps: PackedMasks.from_segmentations(..., as_rle=True)"
        )
    return masks
