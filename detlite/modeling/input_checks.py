"""Check images, targets and proposals on the CPU. Messages name the image and the field."""

import logging
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor

from detlite.structures import boxes as box_ops
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.object_fields import target_fields

logger = logging.getLogger(__name__)

Target = dict[str, Any]

_MIN_VALUE, _MAX_VALUE = -0.5, 2.0  # of float images
# Entries of targets, also those of torchvision that detlite does not use.
_KNOWN = {
    "boxes", "labels", "masks", "keypoints", "proposals", "ignored_boxes", "size", "image_id",
    "area", "iscrowd",
}  # fmt: skip
_MAX_OVERHANG = 0.1  # fraction of the image's sides by which a box may exceed it


def check_images(images: Sequence[Tensor], channels: int) -> None:
    """Raise a TypeError or ValueError that names the first invalid image."""
    shape = f"[{channels}, H, W]"
    if isinstance(images, Tensor) or not isinstance(images, (list, tuple)):
        raise TypeError(f"images must be a list of tensors {shape}, not {type(images).__name__}")
    if not images:
        raise ValueError(f"images is empty: pass at least one tensor {shape}")
    for index, image in enumerate(images):
        kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
        if kind != torch.uint8 and not (isinstance(image, Tensor) and image.is_floating_point()):
            raise TypeError(f"images[{index}] must be a uint8 or float tensor, not {kind}")
        if image.ndim != 3 or image.shape[0] != channels or 0 in image.shape:
            raise ValueError(
                f"images[{index}] must be {shape}{' (RGB)' * (channels == 3)} with H, W > 0, not "
                f"{list(image.shape)}"
            )
        # Reading values of other devices would wait for them, and a graph has no values.
        traced = torch.compiler.is_compiling()
        if image.is_floating_point() and image.device.type == "cpu" and not traced:
            low, high = torch.stack(image.aminmax()).tolist()
            # Interpolation and noise exceed 0..1 a little. NaN fails the comparison as well.
            if not (low >= _MIN_VALUE and high <= _MAX_VALUE):
                raise ValueError(
                    f"images[{index}] must be float in 0..1 or uint8 in 0..255, but its values are "
                    f"from {low:.4g} to {high:.4g}: the model normalizes images itself"
                )


def check_boxes(name: str, boxes: Any, letter: str) -> Tensor:
    """Return boxes as corners if they are a tensor [N, 4], else raise an error."""
    if not isinstance(boxes, Tensor):
        kind = "missing" if boxes is None else type(boxes).__name__
        raise TypeError(f"{name} must be a tensor [{letter}, 4], not {kind}")
    boxes = box_ops.to_xyxy(boxes)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name} must be [{letter}, 4], not {list(boxes.shape)}")
    return boxes


def check_target(
    name: str,
    target: Target,
    image: Tensor,
    num_classes: int,
    required: Sequence[str],
    soft_masks: bool,
) -> Target:
    """Return a target with the required and own fields, masks packed; see `prepare_targets`."""
    if not isinstance(target, dict):
        raise TypeError(f"{name} must be a dict of tensors, not {type(target).__name__}")
    own = target_fields(target)
    missing = [field for field in ("boxes", "labels", *required) if field not in target]
    if missing:
        hint = ""
        if missing[-1] not in ("boxes", "labels", "masks", "keypoints"):
            hint = ": declare it in OBJECT_FIELDS, and list it as `fields` in DATASETS.CATALOG"
        raise ValueError(f"{name} has no {' and no '.join(missing)}{hint}")
    for field in dict.fromkeys(["boxes", "labels", *required, *own]):
        packed = field == "masks" and isinstance(target[field], PackedMasks)
        if not packed and not isinstance(target[field], Tensor):
            kind = type(target[field]).__name__
            raise TypeError(f"{name}['{field}'] must be a tensor, not {kind}")
    boxes, labels = check_boxes(f"{name}['boxes']", target["boxes"], "G"), target["labels"]
    shapes: dict[str, tuple[Any, ...]] = {"labels": ()}
    shapes |= {field: declared.shape or () for field, declared in own.items()}
    if "keypoints" in required:
        shapes["keypoints"] = *target["keypoints"].shape[1:2], 3  # of (x, y, visibility)
    if isinstance(target.get("masks"), Tensor) and "masks" in required:
        shapes["masks"] = tuple(image.shape[1:])
    for field, shape in shapes.items():
        expected, actual = (len(boxes), *shape), target[field].shape
        if actual != expected:
            raise ValueError(
                f"{name}['{field}'] must be {list(expected)} for its boxes and image, not "
                f"{list(actual)}"
            )
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if len(labels) and not integers:  # torch.tensor([]) is float32
        raise TypeError(f"{name}['labels'] must be integers, not {labels.dtype}")
    labels = labels.long()
    size, canvas = image.shape[1:], getattr(target["boxes"], "canvas_size", None)
    if canvas is not None and tuple(canvas) != size:
        raise ValueError(
            f"{name}['boxes'] has the canvas size {canvas}, but the image {list(size)}"
        )
    _check_values(f"{name}['boxes']", boxes.float(), image)
    if len(labels) and not (int(labels.min()) >= 1 and int(labels.max()) < num_classes):
        raise ValueError(
            f"{name}['labels'] must be in 1..{num_classes - 1} "
            f"(NUM_CLASSES is {num_classes} with background)"
        )
    ignored = check_boxes(f"{name}['ignored_boxes']", target.get("ignored_boxes", boxes[:0]), "M")
    checked = {"boxes": boxes, "labels": labels, "ignored_boxes": ignored}
    if "masks" in required:
        checked["masks"] = _check_masks(name, target["masks"], len(boxes), image, soft_masks)
    if "keypoints" in required:
        checked["keypoints"] = target["keypoints"]
    checked |= {field: target[field].to(declared.dtype) for field, declared in own.items()}
    _warn_of_unknown(name, target, own)
    return checked


def _warn_of_unknown(name: str, target: Target, own: Container[str]) -> None:
    """Log each entry with a tensor once that no part of a model can use."""
    for entry, value in target.items():
        if entry not in _KNOWN and entry not in own and isinstance(value, Tensor):
            _KNOWN.add(entry)
            logger.warning(
                "%s['%s'] is not used: an own field of objects must be declared in OBJECT_FIELDS",
                name, entry,
            )  # fmt: skip


def _check_values(name: str, boxes: Tensor, image: Tensor) -> None:
    """Check that boxes [G, 4], in the model's type, are not empty and in pixels of their image."""
    # NaN fails the comparison as well.
    if not (boxes[:, 2:] > boxes[:, :2]).all() or not boxes.isfinite().all():
        raise ValueError(f"{name} must be finite xyxy with x2 > x1 and y2 > y1")
    height, width = image.shape[1:]
    if len(boxes) and float(boxes.max()) <= 1 and min(height, width) > 2:
        raise ValueError(f"{name} must be in pixels, not fractions: all are within one pixel")
    limits = boxes.new_tensor([width, height])
    margin = _MAX_OVERHANG * limits + 1
    outside = (boxes[:, :2] < -margin) | (boxes[:, 2:] > limits + margin)
    outside |= (boxes[:, :2] >= limits) | (boxes[:, 2:] <= 0)
    if outside.any():
        box = boxes[outside.any(dim=1)][0].tolist()
        raise ValueError(
            f"{name} must be xyxy in pixels of the image of {width} x {height}: a box is "
            f"({', '.join(f'{value:g}' for value in box)})"
        )


def _check_masks(
    name: str, masks: Tensor | PackedMasks, count: int, image: Tensor, soft: bool
) -> PackedMasks:
    """Return the masks of an image as run lengths or polygons on the CPU."""
    size = list(image.shape[1:])
    if isinstance(masks, Tensor):
        if masks.is_floating_point() and not ((masks == 0) | (masks == 1)).all():
            raise ValueError(f"{name}['masks'] must be 0 or 1 if they are {masks.dtype}")
        is_bitmap = masks.dtype in (torch.bool, torch.uint8)
        return PackedMasks.from_bitmaps(masks if is_bitmap else masks != 0)
    masks = masks.to("cpu")
    if len(masks) != count:
        raise ValueError(f"{name}['masks'] has {len(masks)} masks for {count} boxes")
    runs = masks.frames[:, 0] > 0
    if (masks.frames[runs, 4:] != torch.tensor(size)).any():
        raise ValueError(f"{name}['masks'] does not have the size {size} of its image")
    if soft and not runs.all():
        raise ValueError(
            f"{name}['masks'] contains polygons, but a model of torchvision's convention is "
            "trained on bitmaps: use PackedMasks.from_segmentations(..., as_rle=True)"
        )
    return masks
