"""Matching in plain torch: the table of overlaps, some ground truth at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check, check_dtype, check_floating, check_same_device, check_shape
from .overlaps import iou

# How many overlaps there are at once: 16 MB, and a few times that on the way.
_MOST_OVERLAPS = 1 << 22


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel `match_boxes`."""
    _check(truth, valid, candidates)
    truth, candidates = truth.float(), candidates.float()
    images, count = len(truth), candidates.shape[-2]
    candidates = candidates if candidates.dim() == 3 else candidates[None]
    index = torch.full((images, count), -1, device=truth.device)
    most = torch.zeros(images, count, device=truth.device)
    best = torch.zeros(images, count, dtype=torch.bool, device=truth.device)
    step = max(1, _MOST_OVERLAPS // max(1, images * count))
    for first in range(0, truth.shape[1] if images * count else 0, step):
        there = valid[:, first : first + step, None]
        overlaps = iou(truth[:, first : first + step], candidates).nan_to_num_(nan=0)
        table = torch.where(there, overlaps, -1)
        highest, place = table.max(dim=1)
        # Only a valid one is above -1, and only a higher one takes the place of an earlier.
        higher = torch.where(index < 0, highest >= 0, highest > most)
        index = torch.where(higher, place + first, index)
        most = torch.where(higher, highest, most)
        largest = table.amax(dim=2, keepdim=True)
        best |= ((table == largest) & (largest > 0)).any(dim=1)
    return index, most, best


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
