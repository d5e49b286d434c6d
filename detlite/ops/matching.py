"""Matching of anchors and proposals to ground truth."""

import torch
from torch import Tensor

from .dispatch import declare


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


declare("match_boxes", "matching.match_boxes", "any", _shapes)
