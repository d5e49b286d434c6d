"""Greedy non-maximum suppression."""

from typing import Any

import torch
from torch import Tensor

from .checks import FLOATING, INTEGERS, check, check_tensors
from .dispatch import compute_dtype, operator


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


# ---- The operators, and their fallbacks: torchvision's operator, one group at a time


def _kept_shape(boxes: Tensor, *_: Any) -> Tensor:
    kept = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((kept,), dtype=torch.int64)


def _padded_shapes(boxes: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *_, limit = others
    shape = (boxes.shape[0], limit)
    return boxes.new_empty(shape, dtype=torch.int64), boxes.new_empty(shape, dtype=torch.bool)


@operator("nms", "torchvision", _kept_shape)
def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    _check("nms", ["N"], boxes, scores, iou_threshold)
    return _suppress(boxes, scores, torch.zeros_like(scores), iou_threshold)


@operator("batched_nms", "torchvision", _kept_shape)
def _batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    _check("batched_nms", ["N"], boxes, scores, iou_threshold)
    check_tensors("batched_nms", idxs=(idxs, scores.shape, INTEGERS))
    return _suppress(boxes, scores, idxs, iou_threshold)


@operator("padded_nms", "torchvision", _padded_shapes)
def _padded_nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, valid: Tensor, iou_threshold: float, limit: int
) -> tuple[Tensor, Tensor]:
    op = "padded_nms"
    _check(op, ["B", "N"], boxes, scores, iou_threshold)
    shape = scores.shape
    check_tensors(op, groups=(groups, shape, INTEGERS), valid=(valid, shape, torch.bool))
    check(limit >= 0, f"{op}: limit must be zero or more, got {limit}")
    index = torch.zeros(len(boxes), limit, dtype=torch.int64, device=boxes.device)
    kept = torch.zeros_like(index, dtype=torch.bool)
    for image in range(len(boxes)):
        chosen = valid[image].nonzero()[:, 0]
        parts = boxes[image, chosen], scores[image, chosen], groups[image, chosen]
        found = chosen[_suppress(*parts, iou_threshold)][:limit]
        index[image, : len(found)] = found
        kept[image, : len(found)] = True
    return index, kept


def _suppress(boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes kept, by decreasing score and then by index.

    Groups are suppressed one by one, because shifting them apart would round coordinates.
    """
    dtype = torch.promote_types(compute_dtype(boxes.dtype), compute_dtype(scores.dtype))
    boxes, scores = boxes.to(dtype), scores.to(dtype)
    index = (~(scores.isnan() | boxes.isnan().any(dim=1))).nonzero()[:, 0]
    index = index[groups[index].argsort(stable=True)]
    starts = (groups[index[1:]] != groups[index[:-1]]).nonzero()[:, 0] + 1
    members = index.tensor_split(starts.tolist())
    torchvision_nms = torch.ops.torchvision.nms
    kept = torch.cat([k[torchvision_nms(boxes[k], scores[k], iou_threshold)] for k in members])
    kept = kept.sort().values
    return kept[scores[kept].argsort(descending=True, stable=True)]


def _check(
    op: str, sizes: list[int | str], boxes: Tensor, scores: Tensor, threshold: float
) -> None:
    check_tensors(
        op,
        boxes=(boxes, [*sizes, 4], FLOATING),
        scores=(scores, boxes.shape[:-1], FLOATING),
    )
    check(threshold >= 0, f"{op}: iou_threshold must be zero or more, got {threshold}")
