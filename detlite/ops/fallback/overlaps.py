"""Overlaps of boxes in plain torch."""

from __future__ import annotations

from torch import Tensor


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union, by the operations of csrc/iou.h.

    Args:
        boxes: [..., K, 4] of (x1, y1, x2, y2).
        others: [..., k, 4].

    Returns:
        [..., K, k]; NaN where the union has no area, or a number is not finite.
    """
    ax1, ay1, ax2, ay2 = boxes[..., :, None, :].unbind(dim=-1)
    bx1, by1, bx2, by2 = others[..., None, :, :].unbind(dim=-1)
    # In place, as the tables are large.
    width = ax2.minimum(bx2).sub_(ax1.maximum(bx1)).clamp_(min=0)
    height = ay2.minimum(by2).sub_(ay1.maximum(by1)).clamp_(min=0)
    shared = width.mul_(height)
    area, other = (ax2 - ax1) * (ay2 - ay1), (bx2 - bx1) * (by2 - by1)
    return shared.div_((area + other).sub_(shared))
