"""Matching of anchors and proposals to ground truth."""

import torch
from torch import Tensor

from detlite.structures import boxes as box_ops

from .checks import FLOATING, check_tensors
from .dispatch import operator


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the ground truth with the highest IoU for each candidate (anchor or proposal).

    The `[G, N]` table of overlaps is never stored: memory grows with N + G. Overlaps equal
    `detlite.structures.boxes.iou` bit by bit, for any number of threads. A box with a NaN overlaps
    nothing.

    Args:
        truth: `[B, G, 4]` of (x1, y1, x2, y2), any floating type; computes in float32.
        valid: bool `[B, G]`, False where `truth` is padding.
        candidates: `[N, 4]`, the same for all images, or `[B, N, 4]`; any floating type.

    Returns:
        index: int64 `[B, N]`, the valid ground truth with the highest overlap, the lowest index
            for equal overlaps (also if they are 0); -1 if the image has none.
        iou: float32 `[B, N]`, that overlap; 0 if the index is -1.
        best: bool `[B, N]`, True if the candidate has the highest overlap of all candidates with
            some valid ground truth, and that overlap is above 0.
    """
    return torch.ops.detlite.match_boxes(truth, valid, candidates)


def _shapes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (truth.shape[0], candidates.shape[-2])
    return (
        truth.new_empty(shape, dtype=torch.int64),
        truth.new_empty(shape, dtype=torch.float32),
        truth.new_empty(shape, dtype=torch.bool),
    )


@operator("match_boxes", "any", _shapes)
def _match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Match one ground truth at a time."""
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
