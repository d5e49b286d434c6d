"""Boxes: functions on float tensors [N, 4] of (x1, y1, x2, y2).

Coordinates are continuous and in pixels: a box that covers exactly the first pixel of an image is
(0, 0, 1, 1). There is no "+1" anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


def area(boxes: Tensor) -> Tensor:
    """Areas [N] in square pixels; a reversed side counts as zero."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union [N, M] of boxes a [N, 4] and b [M, 4]; 0 where both are empty."""
    # Axis by axis and in place: the tables have millions of entries, and memory sets the pace.
    width = torch.minimum(a[:, None, 2], b[None, :, 2])  # (N, M)
    width.sub_(torch.maximum(a[:, None, 0], b[None, :, 0])).clamp_(min=0)
    height = torch.minimum(a[:, None, 3], b[None, :, 3])
    height.sub_(torch.maximum(a[:, None, 1], b[None, :, 1])).clamp_(min=0)
    intersection = width.mul_(height)
    union = area(a)[:, None] + area(b)[None, :] - intersection
    return torch.where(union > 0, intersection / union, 0.0)


def clip(boxes: Tensor, size: tuple[int, int], inclusive: bool = False) -> Tensor:
    """Boxes [..., 4] cut to an image of size (height, width).

    Where x2 and y2 count the last pixel inside (`inclusive`), a box beyond the border keeps the
    pixel at the border instead of becoming empty.
    """
    height, width = size
    lowest = boxes.new_tensor([0, 0, 1, 1] if inclusive else [0, 0, 0, 0])
    highest = lowest + boxes.new_tensor([width, height, width, height])
    highest -= 1 if inclusive else 0
    return torch.minimum(torch.maximum(boxes, lowest), highest)


def scale(boxes: Tensor, factors: tuple[float, float]) -> Tensor:
    """Boxes [..., 4] with y multiplied by factors[0] and x by factors[1]."""
    y, x = factors
    return boxes * boxes.new_tensor([x, y, x, y])


def mirror(boxes: Tensor, width: float) -> Tensor:
    """Boxes [..., 4] of an image of that width, left and right exchanged."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


def drop_last_pixel(boxes: Tensor) -> Tensor:
    """Boxes [..., 4] one pixel shorter at x2 and y2, but never reversed.

    The form of frameworks whose x2, y2 are the last pixel inside, where they forget the pixel's
    own extent.
    """
    return torch.cat([boxes[..., :2], torch.maximum(boxes[..., 2:] - 1, boxes[..., :2])], dim=-1)


def at_least(boxes: Tensor, min_size: float) -> Tensor:
    """Bool [N]: both sides positive and at least `min_size` pixels."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return ((sides > 0) & (sides >= min_size)).all(dim=1)


def inside(boxes: Tensor, size: tuple[int, int], margin: float, inclusive: bool = False) -> Tensor:
    """Bool [N]: boxes that stay within `margin` pixels of an image of (height, width).

    Where x2 and y2 count the last pixel inside (`inclusive`), it is enough that this pixel begins
    there.
    """
    height, width = size
    limits = boxes.new_tensor([width, height]) + margin
    high = boxes[:, 2:]
    within = high - 1 < limits if inclusive else high <= limits
    return (boxes[:, :2] >= -margin).all(1) & within.all(1)


def xyxy_to_xywh(boxes: Tensor) -> Tensor:
    """Boxes [..., 4] as (x1, y1, width, height), the form of COCO's json."""
    return torch.cat([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], dim=-1)


def xywh_to_xyxy(boxes: Tensor) -> Tensor:
    """The inverse of `xyxy_to_xywh`."""
    return torch.cat([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], dim=-1)
