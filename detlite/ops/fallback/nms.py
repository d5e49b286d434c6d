"""Non-maximum suppression through torchvision, one group at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .checks import (
    check,
    check_dtype,
    check_floating,
    check_integers,
    check_same_device,
    check_shape,
    wide,
)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Implement `nms`."""
    _check("nms", boxes, scores, iou_threshold)
    return _suppress(boxes, scores, iou_threshold)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Implement `batched_nms`."""
    _check("batched_nms", boxes, scores, iou_threshold, idxs=idxs)
    return _suppress(boxes, scores, iou_threshold, idxs)


def padded_nms(
    boxes: Tensor,
    scores: Tensor,
    groups: Tensor,
    valid: Tensor,
    iou_threshold: float,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """Implement `padded_nms`."""
    op = "padded_nms"
    _check(op, boxes, scores, iou_threshold, groups=groups, valid=valid)
    check_dtype(op, "valid", valid, torch.bool)
    check(limit >= 0, f"{op}: limit must be zero or more, got {limit}")
    index = torch.zeros(len(boxes), limit, dtype=torch.int64, device=boxes.device)
    kept = torch.zeros(len(boxes), limit, dtype=torch.bool, device=boxes.device)
    for image in range(len(boxes)):
        own = _suppress(boxes[image], scores[image], iou_threshold, groups[image], valid[image])
        own = own[:limit]
        index[image, : len(own)] = own
        kept[image, : len(own)] = True
    return index, kept


def _suppress(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    groups: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Return the indices of the boxes kept, by decreasing score and then by index.

    Groups are suppressed one by one, because shifting them apart would round coordinates.
    """
    dtype = torch.promote_types(wide(boxes.dtype), wide(scores.dtype))
    boxes, scores = boxes.to(dtype), scores.to(dtype)
    candidates = ~(scores.isnan() | boxes.isnan().any(dim=1))
    if valid is not None:
        candidates &= valid
    index = candidates.nonzero()[:, 0]
    members: Sequence[Tensor] = [index]
    if groups is not None:
        index = index[groups[index].argsort(stable=True)]
        group = groups[index]
        starts = (group[1:] != group[:-1]).nonzero()[:, 0] + 1
        members = index.tensor_split(starts.tolist())
    kept = torch.cat(
        [own[torch.ops.torchvision.nms(boxes[own], scores[own], iou_threshold)] for own in members]
    )
    kept = kept.sort().values
    return kept[scores[kept].argsort(descending=True, stable=True)]


def _check(op: str, boxes: Tensor, scores: Tensor, iou_threshold: float, **others: Tensor) -> None:
    expected = "[B, N, 4]" if "valid" in others else "[N, 4]"
    shape = list(boxes.shape)
    check(
        len(shape) == expected.count(",") + 1 and shape[-1] == 4,
        f"{op}: boxes must have shape {expected}, got {shape}",
    )
    check_floating(op, "boxes", boxes)
    for name, tensor in {"scores": scores, **others}.items():
        check_shape(op, name, tensor, shape[:-1], ", one for each box")
    check_same_device(op, boxes, scores=scores, **others)
    check_floating(op, "scores", scores)
    check(iou_threshold >= 0, f"{op}: iou_threshold must be zero or more, got {iou_threshold}")
    for name in ("idxs", "groups"):
        if name in others:
            check_integers(op, name, others[name])
