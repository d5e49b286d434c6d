"""Non-maximum suppression by torchvision's operator, one group at a time."""

import torch
from torch import Tensor

from detlite.ops.dispatch import compute_dtype

from .checks import FLOATING, INTEGERS, check, check_tensors


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    _check("nms", ["N"], boxes, scores, iou_threshold)
    return _suppress(boxes, scores, torch.zeros_like(scores), iou_threshold)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    _check("batched_nms", ["N"], boxes, scores, iou_threshold)
    check_tensors("batched_nms", idxs=(idxs, scores.shape, INTEGERS))
    return _suppress(boxes, scores, idxs, iou_threshold)


def padded_nms(
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
