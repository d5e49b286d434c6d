"""What follows from the overlaps of boxes: greedy non-maximum suppression, and matching."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Keeps each box that overlaps no better-scored kept box by more than the threshold.

    Args:
        boxes: `Tensor[N, 4]` of (x1, y1, x2, y2), any floating type; half types compute in float32.
        scores: `Tensor[N]`, any floating type.
        iou_threshold: the largest intersection over union, 0 to 1, of two boxes that both stay.

    Returns:
        int64 `Tensor[M]`: the indices kept, by decreasing score. Of equal scores the lower index
        comes first. A box with a NaN in its score or coordinates is never kept.

    Raises:
        RuntimeError: a shape, type, device or threshold is wrong; the message names the argument.
    """
    return torch.ops.detlite.nms(boxes, scores, iou_threshold)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """`nms` within each group: boxes of different groups never suppress each other.

    Args:
        boxes, scores, iou_threshold: as for `nms`.
        idxs: `Tensor[N]` of integers, each box's group: its class, level or image. Any values.

    Returns:
        int64 `Tensor[M]`: the indices kept in all groups together, by decreasing score.

    Raises:
        RuntimeError: a shape, type, device or threshold is wrong; the message names the argument.
    """
    return torch.ops.detlite.batched_nms(boxes, scores, idxs, iou_threshold)


def padded_nms(
    boxes: Tensor,
    scores: Tensor,
    groups: Tensor,
    valid: Tensor,
    iou_threshold: float,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """`batched_nms` of each image by itself, with results of a fixed size.

    On CUDA the host never waits, and a CUDA graph can capture the call.

    Args:
        boxes: `Tensor[B, N, 4]` of (x1, y1, x2, y2), as for `nms`.
        scores: `Tensor[B, N]` of any numbers, negative and infinite ones too.
        groups: `Tensor[B, N]` of integers, as `idxs` for `batched_nms`.
        valid: bool `Tensor[B, N]`; where it is False, the box is never kept and suppresses nothing.
        iou_threshold: as for `nms`.
        limit: D, how many boxes of each image to keep at most, zero or more; may be more than N.

    Returns:
        index: int64 `Tensor[B, D]`, the boxes kept of each image, by decreasing score; 0 where
            fewer than D are left.
        kept: bool `Tensor[B, D]`; False where nothing is left. The True ones come first.

    Raises:
        RuntimeError: a shape, type, device or number is wrong; the message names the argument.
    """
    return torch.ops.detlite.padded_nms(boxes, scores, groups, valid, iou_threshold, limit)


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matches candidates (anchors, proposals) to ground truth without the [G, N] table of overlaps.

    The overlaps are those of `detlite.structures.boxes.iou`, bit by bit. Memory grows with N + G.
    The result does not depend on the number of threads. A box with a NaN overlaps nothing.

    Args:
        truth: `Tensor[B, G, 4]` of (x1, y1, x2, y2), any floating type; computes in float32.
        valid: bool `Tensor[B, G]`; False where a box of `truth` is padding.
        candidates: `Tensor[N, 4]`, the same for all images, or `Tensor[B, N, 4]`; any floating
            type.

    Returns:
        index: int64 `Tensor[B, N]`, the valid ground truth that the candidate overlaps most, the
            lowest index of equals (also where it overlaps none); -1 where the image has none.
        iou: float32 `Tensor[B, N]`, that overlap, 0 to 1; 0 where the index is -1.
        best: bool `Tensor[B, N]`, whether there is a valid ground truth that no candidate overlaps
            more than this one does, and by more than 0.

    Raises:
        RuntimeError: a shape, type or device is wrong; the message names the argument.
    """
    return torch.ops.detlite.match_boxes(truth, valid, candidates)


@torch.library.register_fake("detlite::nms")
@torch.library.register_fake("detlite::batched_nms")
def _(boxes: Tensor, *_: Any) -> Tensor:
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((kept,), dtype=torch.int64)


@torch.library.register_fake("detlite::padded_nms")
def _(boxes: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, limit = others
    shape = (boxes.shape[0], limit)
    return boxes.new_empty(shape, dtype=torch.int64), boxes.new_empty(shape, dtype=torch.bool)


@torch.library.register_fake("detlite::match_boxes")
def _(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (truth.shape[0], candidates.shape[-2])
    return (
        truth.new_empty(shape, dtype=torch.int64),
        truth.new_empty(shape, dtype=torch.float32),
        truth.new_empty(shape, dtype=torch.bool),
    )
