"""Matching of boxes by tables of overlaps, a block of ground truth at a time."""

import torch
from torch import Tensor

from .checks import FLOATING, check_tensors

# Overlaps in a block: 16 MB, and a few times that for temporary results.
_MAX_OVERLAPS = 1 << 22


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch = [] if candidates.dim() == 2 else [len(truth)]
    check_tensors(
        "match_boxes",
        truth=(truth, ["B", "G", 4], FLOATING),
        valid=(valid, truth.shape[:2], torch.bool),
        candidates=(candidates, [*batch, "N", 4], FLOATING),
    )
    truth, candidates = truth.float(), candidates.float()
    images, count = len(truth), candidates.shape[-2]
    candidates = candidates if candidates.dim() == 3 else candidates[None]
    index = torch.full((images, count), -1, device=truth.device)
    max_iou = torch.zeros(images, count, device=truth.device)
    best = torch.zeros(images, count, dtype=torch.bool, device=truth.device)
    block = max(1, _MAX_OVERLAPS // max(1, images * count))
    for start in range(0, truth.shape[1] if images * count else 0, block):
        overlaps = _iou(truth[:, start : start + block], candidates)
        table = torch.where(valid[:, start : start + block, None], overlaps, -1)
        highest, row = table.max(dim=1)
        # Only valid ground truth is above -1, and only a higher overlap replaces an earlier one.
        higher = torch.where(index < 0, highest >= 0, highest > max_iou)
        index = torch.where(higher, row + start, index)
        max_iou = torch.where(higher, highest, max_iou)
        row_max = table.amax(dim=2, keepdim=True)
        best |= ((table == row_max) & (row_max > 0)).any(dim=1)
    return index, max_iou, best


def _iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the IoU `[B, K, N]`, computed as in csrc/common/iou.h, with 0 instead of NaN."""
    ax1, ay1, ax2, ay2 = boxes[..., :, None, :].unbind(dim=-1)
    bx1, by1, bx2, by2 = others[..., None, :, :].unbind(dim=-1)
    # In place, because the tables are large.
    width = ax2.minimum(bx2).sub_(ax1.maximum(bx1)).clamp_(min=0)
    height = ay2.minimum(by2).sub_(ay1.maximum(by1)).clamp_(min=0)
    intersection = width.mul_(height)
    areas = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1)
    return intersection.div_(areas.sub_(intersection)).nan_to_num_(nan=0)
