"""Box operations on float tensors `[..., 4]` of (x1, y1, x2, y2) in pixels.

Coordinates are continuous: a box around exactly the first pixel of an image is (0, 0, 1, 1). Sizes
are (height, width): one pair for boxes `[..., N, 4]` of one image, or an int tensor `[B, 2]` for
boxes `[B, N, 4]` of a batch. No function waits for the device.

Some operations depend on the convention of the framework that trained the model, see
`detlite.conventions`: with inclusive boxes, x2 and y2 are the last pixel inside plus one.
"""

import torch
from torch import Tensor

from detlite.conventions import CONVENTIONS, Convention

Sizes = tuple[int, int] | Tensor


def to_xyxy(boxes: Tensor) -> Tensor:
    """Return boxes as a plain tensor of corners. Only torchvision's `BoundingBoxes` state another
    format; of these, rotated ones are returned as they are, with more than 4 columns."""
    name = getattr(getattr(boxes, "format", None), "value", "XYXY")
    boxes = boxes.as_subclass(Tensor)
    if name not in ("XYWH", "CXCYWH"):
        return boxes
    position, size = boxes[..., :2], boxes[..., 2:]
    low = position if name == "XYWH" else position - size / 2
    return torch.cat([low, low + size], dim=-1)


def area(boxes: Tensor) -> Tensor:
    """Return the areas `[...]` of boxes in square pixels; reversed sides count as 0."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU `[..., N, M]` of every pair of boxes `[..., N, 4]` and `[..., M, 4]`.

    It is 0 if both boxes are empty.
    """
    # One axis at a time and in place: the tables have millions of entries and are memory-bound.
    a, b = a[..., :, None, :], b[..., None, :, :]
    width = torch.minimum(a[..., 2], b[..., 2])  # [..., N, M]
    width.sub_(torch.maximum(a[..., 0], b[..., 0])).clamp_(min=0)
    height = torch.minimum(a[..., 3], b[..., 3])
    height.sub_(torch.maximum(a[..., 1], b[..., 1])).clamp_(min=0)
    intersection = width.mul_(height)
    union = area(a) + area(b) - intersection
    return torch.where(union > 0, intersection / union, 0.0)


def intersection(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the common region `[..., 4]` of each box and its counterpart; empty sides are 0."""
    low = torch.maximum(boxes[..., :2], others[..., :2])
    high = torch.minimum(boxes[..., 2:], others[..., 2:])
    return torch.cat([low, torch.maximum(low, high)], dim=-1)


def flip(boxes: Tensor, width: float) -> Tensor:
    """Mirror boxes horizontally in an image of this width."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


def has_min_size(boxes: Tensor, min_size: float) -> Tensor:
    """Return bool `[...]`, True if both sides are positive and at least `min_size` pixels."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return ((sides > 0) & (sides >= min_size)).all(dim=-1)


def clip(boxes: Tensor, sizes: Sizes, convention: Convention = CONVENTIONS["detlite"]) -> Tensor:
    """Clip boxes to their images.

    An inclusive box outside the image keeps the pixel at the border instead of becoming empty.
    """
    last_pixel = int(convention.inclusive_boxes)
    limits = width_height(boxes, sizes)
    low = torch.minimum(boxes[..., :2].clamp(min=0), limits - last_pixel)
    high = torch.minimum(boxes[..., 2:].clamp(min=last_pixel), limits)
    return torch.cat([low, high], dim=-1)


def inside(boxes: Tensor, sizes: Sizes, margin: float, convention: Convention) -> Tensor:
    """Return bool `[...]`, True if a box exceeds its image by at most `margin` pixels.

    The last pixel of an inclusive box only has to start inside.
    """
    limits = width_height(boxes, sizes) + margin
    high = boxes[..., 2:]
    within = high - 1 < limits if convention.inclusive_boxes else high <= limits
    return ((boxes[..., :2] >= -margin) & within).all(dim=-1)


def pooled_region(boxes: Tensor, convention: Convention) -> Tensor:
    """Return the regions `[..., 4]` that features are pooled from and that masks and heat maps
    cover: the boxes, without the last pixel if they are inclusive."""
    if not convention.inclusive_boxes:
        return boxes
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([low, torch.maximum(high - 1, low)], dim=-1)  # never reversed


def rescale(
    boxes: Tensor, from_size: Sizes, to_size: Sizes, convention: Convention, clipped: bool = True
) -> Tensor:
    """Scale boxes of an image to another size of the same image.

    Height and width have separate factors, because resizing rounds each to whole pixels. That
    rounding can move boxes across the border, so they are clipped, unless they are inclusive or
    `clipped` is False.
    """
    factors = width_height(boxes, to_size) / width_height(boxes, from_size)
    low, high = boxes[..., :2], boxes[..., 2:]
    if convention.inclusive_boxes:
        # The last pixel keeps its size, so a box at the border may exceed a smaller image.
        return torch.cat([low * factors, (high - 1) * factors + 1], dim=-1)
    scaled = torch.cat([low * factors, high * factors], dim=-1)
    return clip(scaled, to_size, convention) if clipped else scaled


def width_height(like: Tensor, sizes: Sizes) -> Tensor:
    """Return (width, height) in the dtype of `like`, to broadcast over corners `[..., N, 2]`."""
    if isinstance(sizes, Tensor):
        return sizes.flip(-1).unsqueeze(-2).to(like.dtype)
    height, width = sizes
    # Filled on the device: copying a tensor made from a list would wait for the device.
    return torch.stack([like.new_full((), width), like.new_full((), height)])
