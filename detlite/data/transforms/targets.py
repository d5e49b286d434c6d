"""Targets of training images: their fields, and how to select and crop their objects."""

from collections.abc import Callable

import torch
from torch import Tensor

from detlite.data.datasets.coco import Target
from detlite.structures import boxes as box_ops
from detlite.structures.masks.editing import crop_to_window, masks_to_boxes
from detlite.structures.object_fields import Affine, move_fields, target_fields

Color = tuple[float, ...]  # one value in 0..255 per channel
# A function of an image [C, H, W] and its target, which returns changed copies of both.
TargetTransform = Callable[[Tensor, Target], tuple[Tensor, Target]]
REGION_FIELDS = {"proposals", "ignored_boxes"}  # boxes without a label
BOX_FIELDS = {"boxes", *REGION_FIELDS}
Window = tuple[int, int, int, int]  # top, left, height, width


def crop(image: Tensor, target: Target, window: Window) -> tuple[Tensor, Target]:
    """Crop an image [C, H, W] and its target to a window inside of the image."""
    top, left, height, width = window
    part = image[:, top : top + height, left : left + width]
    return part.contiguous(), crop_target(target, *window)


def crop_target(target: Target, top: int, left: int, height: int, width: int) -> Target:
    """Crop a target to a window, which may exceed the image.

    The box of an object that the window cuts is clipped, with masks to the box of the visible part.
    Objects with less than a pixel in height or width are dropped. Keypoints outside become
    unlabeled. Proposals and ignored regions are clipped.
    """
    size = (height, width)
    shift = torch.tensor([left, top, left, top])
    clipped = box_ops.clip(target["boxes"] - shift, size)
    # Drop objects before cutting masks, because most of them may be outside.
    target = dict(select_objects(target, box_ops.has_min_size(clipped, 1)))
    moved = target["boxes"] - shift
    boxes = box_ops.clip(moved, size)
    if "masks" in target:
        target["masks"] = crop_to_window(target["masks"], top, left, height, width)
        cut = (boxes != moved).any(dim=1)
        visible = masks_to_boxes(target["masks"].select(cut), height, width)
        boxes[cut] = box_ops.intersection(boxes[cut], visible)
    target["boxes"] = boxes
    target = move_own_fields(target, ((1.0, 0.0, -left), (0.0, 1.0, -top)))
    if "keypoints" in target:
        x, y, visibility = (target["keypoints"] - torch.tensor([left, top, 0])).unbind(-1)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        target["keypoints"] = torch.stack([x, y, visibility * inside], dim=-1)
    for name in target.keys() & REGION_FIELDS:
        regions = box_ops.clip(target[name] - shift, size)
        target[name] = regions[box_ops.has_min_size(regions, 1)]
    return select_objects(target, box_ops.has_min_size(target["boxes"], 1))


def select_objects(target: Target, keep: Tensor) -> Target:
    """Return a target with the objects for which `keep`, bool [N], is True."""
    if keep.all():
        return target
    kept = {name: target[name][keep] for name in object_tensors(target)}
    if "masks" in target:
        kept["masks"] = target["masks"].select(keep)
    return {**target, **kept}


def object_tensors(target: Target) -> set[str]:
    """Return the names of the tensors with one row per object, own fields included."""
    return target.keys() & {"boxes", "labels", "keypoints", *target_fields(target)}


def move_own_fields(target: Target, matrix: Affine) -> Target:
    """Return a target whose own fields follow the points of its image, see `move_fields`."""
    own = {name: target[name] for name in target_fields(target)}
    return {**target, **move_fields(own, matrix)}
