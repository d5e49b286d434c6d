"""Assigning ground truth to anchors and proposals, and sampling a training set from them."""

from __future__ import annotations

import torch
from torch import Tensor

BACKGROUND = -1
IGNORE = -2


def match(iou: Tensor, foreground: float, background: float, keep_best: bool = False) -> Tensor:
    """The ground truth that each candidate stands for.

    Args:
        iou: [G, N] overlap of G ground-truth boxes with N candidates.
        foreground: overlap from which a candidate stands for its best ground truth.
        background: overlap below which it is background; between the two it is ignored.
        keep_best: also keep, for each ground truth, the candidates that overlap it most, however
            little (as the RPN must, or small objects would get no anchor).

    Returns:
        int64 [N] of ground-truth indices, BACKGROUND or IGNORE.
    """
    if iou.shape[0] == 0:
        return torch.full((iou.shape[1],), BACKGROUND, dtype=torch.int64, device=iou.device)
    best, matched = iou.max(dim=0)
    result = matched.clone()
    result[best < foreground] = IGNORE
    result[best < background] = BACKGROUND
    if keep_best and iou.shape[1]:
        highest = iou.max(dim=1, keepdim=True).values
        # A ground truth that touches no candidate has nothing to keep.
        kept = ((iou == highest) & (iou > 0)).any(dim=0)
        result[kept] = matched[kept]
    return result


def sample(matched: Tensor, count: int, positive_fraction: float) -> tuple[Tensor, Tensor]:
    """Draws candidates at random, at most `positive_fraction` of them foreground.

    Args:
        matched: [N] as `match` returns it.
        count: how many to draw; fewer where there are not enough.

    Returns:
        Indices of the drawn foreground and background candidates.
    """
    positive = torch.where(matched >= 0)[0]
    negative = torch.where(matched == BACKGROUND)[0]
    num_positive = min(len(positive), int(count * positive_fraction))
    num_negative = min(len(negative), count - num_positive)
    positive = positive[torch.randperm(len(positive), device=matched.device)[:num_positive]]
    negative = negative[torch.randperm(len(negative), device=matched.device)[:num_negative]]
    return positive, negative
