"""Matching in plain torch: the table of overlaps, some ground truth at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check, check_dtype, check_floating, check_same_device, check_shape

# How many overlaps there are at once: 16 MB, and a few times that on the way.
_MOST_OVERLAPS = 1 << 22


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel `match_boxes`."""
    _check(truth, valid, candidates)
    truth, candidates = truth.float(), candidates.float()
    images, count = len(truth), candidates.shape[-2]
    candidates = candidates if candidates.dim() == 3 else candidates[None]
    index = torch.full((images, count), -1, device=truth.device)
    iou = torch.zeros(images, count, device=truth.device)
    best = torch.zeros(images, count, dtype=torch.bool, device=truth.device)
    step = max(1, _MOST_OVERLAPS // max(1, images * count))
    for first in range(0, truth.shape[1] if images * count else 0, step):
        there = valid[:, first : first + step, None]
        table = torch.where(there, _iou(truth[:, first : first + step], candidates), -1)
        highest, place = table.max(dim=1)
        # Only a valid one is above -1, and only a higher one takes the place of an earlier.
        higher = torch.where(index < 0, highest >= 0, highest > iou)
        index = torch.where(higher, place + first, index)
        iou = torch.where(higher, highest, iou)
        largest = table.amax(dim=2, keepdim=True)
        best |= ((table == largest) & (largest > 0)).any(dim=1)
    return index, iou, best


def _iou(truth: Tensor, candidates: Tensor) -> Tensor:
    """[B, g, 4] and [B or 1, N, 4] to [B, g, N], by the operations of csrc/iou.h; 0 for NaN."""
    ax1, ay1, ax2, ay2 = truth[:, :, None].unbind(dim=3)
    bx1, by1, bx2, by2 = candidates[:, None].unbind(dim=3)
    # In place, as the tables are large.
    width = ax2.minimum(bx2).sub_(ax1.maximum(bx1)).clamp_(min=0)
    height = ay2.minimum(by2).sub_(ay1.maximum(by1)).clamp_(min=0)
    shared = width.mul_(height)
    area = (ax2 - ax1).clamp(min=0) * (ay2 - ay1).clamp(min=0)
    other = (bx2 - bx1).clamp(min=0) * (by2 - by1).clamp(min=0)
    union = (area + other).sub_(shared)
    return torch.where(union > 0, shared.div_(union), 0)


def _check(truth: Tensor, valid: Tensor, candidates: Tensor) -> None:
    op = "match_boxes"
    shape = list(truth.shape)
    check(truth.dim() == 3 and shape[2] == 4, f"{op}: truth must have shape [B, G, 4], got {shape}")
    check_shape(op, "valid", valid, shape[:2])
    check_dtype(op, "valid", valid, torch.bool)
    found = list(candidates.shape)
    shared = len(found) == 2
    check(
        (shared or (len(found) == 3 and found[0] == shape[0])) and found[-1] == 4,
        f"{op}: candidates must have shape [N, 4] or [{shape[0]}, N, 4], got {found}",
    )
    check_floating(op, "truth", truth)
    check_floating(op, "candidates", candidates)
    check_same_device(op, truth, valid=valid, candidates=candidates)
