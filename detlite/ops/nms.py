"""Greedy non-maximum suppression."""

from typing import Any

import torch
from torch import Tensor

from .dispatch import declare


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Keep each box that overlaps no higher-scoring kept box by more than a threshold.

    Args:
        boxes: `[N, 4]` of (x1, y1, x2, y2), any floating type; half types compute in float32.
        scores: `[N]`, any floating type.
        iou_threshold: the largest intersection over union, 0 to 1, of two kept boxes.

    Returns:
        int64 `[M]`: the indices of the kept boxes by decreasing score, the lower index first for
        equal scores. A box with a NaN in its score or coordinates is never kept.
    """
    return torch.ops.detlite.nms(boxes, scores, iou_threshold)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Apply `nms` within each group: boxes of different groups never suppress each other.

    Args:
        boxes, scores, iou_threshold: as for `nms`.
        idxs: `[N]`, the group of each box: its class, level or image. Any values, also floats.

    Returns:
        int64 `[M]`: the indices of the kept boxes of all groups by decreasing score.
    """
    if idxs.is_floating_point():  # such as the column of classes in a tensor of detections
        idxs = idxs.unique(return_inverse=True)[1]
    return torch.ops.detlite.batched_nms(boxes, scores, idxs, iou_threshold)


def padded_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, valid: Tensor, iou_threshold: float, limit: int
) -> tuple[Tensor, Tensor]:
    """Apply `batched_nms` to each image of a batch, with results of a fixed size.

    On CUDA the host never waits, and a CUDA graph can capture the call.

    Args:
        boxes: `[B, N, 4]` of (x1, y1, x2, y2), as for `nms`.
        scores: `[B, N]`, any numbers including negative and infinite ones.
        groups: integers `[B, N]`, as `idxs` for `batched_nms`.
        valid: bool `[B, N]`; False for boxes that are never kept and suppress nothing.
        iou_threshold: as for `nms`.
        limit: D, the largest number of boxes to keep per image, at least 0; may exceed N.

    Returns:
        index: int64 `[B, D]`, the kept boxes of each image by decreasing score, padded with 0.
        kept: bool `[B, D]`, False for padding, which comes last.
    """
    return torch.ops.detlite.padded_nms(boxes, scores, groups, valid, iou_threshold, limit)


def _kept_shape(boxes: Tensor, *_: Any) -> Tensor:
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((kept,), dtype=torch.int64)


def _padded_shapes(boxes: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, limit = others
    shape = (boxes.shape[0], limit)
    return boxes.new_empty(shape, dtype=torch.int64), boxes.new_empty(shape, dtype=torch.bool)


declare("nms", "nms.nms", "torchvision", _kept_shape)
declare("batched_nms", "nms.batched_nms", "torchvision", _kept_shape)
declare("padded_nms", "nms.padded_nms", "torchvision", _padded_shapes)
