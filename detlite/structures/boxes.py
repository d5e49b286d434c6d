"""Boxes: functions on float tensors [N, 4] of (x1, y1, x2, y2).

Coordinates are continuous and in pixels: a box that covers exactly the first pixel of an image is
(0, 0, 1, 1). There is no "+1" anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


def area(boxes: Tensor) -> Tensor:
    """Areas [...] of boxes [..., 4] in square pixels; a reversed side counts as zero."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union [..., N, M] of boxes a [..., N, 4] and b [..., M, 4]; 0 where both
    are empty."""
    # Axis by axis and in place: the tables have millions of entries, and memory sets the pace.
    a, b = a[..., :, None, :], b[..., None, :, :]
    width = torch.minimum(a[..., 2], b[..., 2])  # (..., N, M)
    width.sub_(torch.maximum(a[..., 0], b[..., 0])).clamp_(min=0)
    height = torch.minimum(a[..., 3], b[..., 3])
    height.sub_(torch.maximum(a[..., 1], b[..., 1])).clamp_(min=0)
    intersection = width.mul_(height)
    union = area(a) + area(b) - intersection
    return torch.where(union > 0, intersection / union, 0.0)


def intersect(boxes: Tensor, others: Tensor) -> Tensor:
    """What boxes [..., 4] have in common with others [..., 4], row by row; a side that is nothing
    has no extent."""
    low = torch.maximum(boxes[..., :2], others[..., :2])
    high = torch.minimum(boxes[..., 2:], others[..., 2:])
    return torch.cat([low, torch.maximum(low, high)], dim=-1)


def mirror(boxes: Tensor, width: float) -> Tensor:
    """Boxes [..., 4] of an image of that width, left and right exchanged."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack([width - x2, y1, width - x1, y2], dim=-1)


def at_least(boxes: Tensor, min_size: float) -> Tensor:
    """Bool [...]: both sides of boxes [..., 4] positive and at least `min_size` pixels."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return ((sides > 0) & (sides >= min_size)).all(dim=-1)
