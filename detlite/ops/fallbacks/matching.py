"""Matching of boxes, one ground truth at a time."""

import torch
from torch import Tensor

from detlite.structures import boxes as box_ops

from .checks import FLOATING, check_tensors


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch = [] if candidates.dim() == 2 else [len(truth)]
    check_tensors(
        "match_boxes",
        truth=(truth, ["B", "G", 4], FLOATING),
        valid=(valid, truth.shape[:2], torch.bool),
        candidates=(candidates, [*batch, "N", 4], FLOATING),
    )
    truth, candidates = truth.float(), candidates.float()
    shape = len(truth), candidates.shape[-2]
    index = torch.full(shape, -1, device=truth.device)
    iou = torch.zeros(shape, device=truth.device)
    best = torch.zeros(shape, dtype=torch.bool, device=truth.device)
    for number in range(truth.shape[1] if candidates.shape[-2] else 0):
        overlap = box_ops.iou(truth[:, number, None], candidates)[:, 0]  # [B, N]
        overlap = torch.where(valid[:, number, None], overlap, -1)
        # Only valid ground truth is above -1, and only a higher overlap replaces an earlier one.
        higher = torch.where(index < 0, overlap >= 0, overlap > iou)
        index = torch.where(higher, number, index)
        iou = torch.where(higher, overlap, iou)
        highest = overlap.amax(dim=1, keepdim=True)
        best |= (overlap == highest) & (highest > 0)
    return index, iou, best
