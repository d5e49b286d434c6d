"""Non-maximum suppression in plain torch: block by block of boxes, a table of overlaps at a time.

Greedy suppression goes from box to box. Here all boxes of a block are judged at once, in rounds: a
box stays if no better box that stayed in the round before overlaps it. The best box is right from
the start, and each round makes right what depends on those alone that are, so the rounds end with
the greedy result. They are as many as the longest chain of boxes has, each overlapping the next.

Shapes: M candidates of all images that take part, K of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from .overlaps import iou

# Boxes of a block: a table of 4 MB, and a few times that on the way.
_BLOCK = 1 << 10


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The kernel `nms`."""
    _check("nms", boxes, scores, iou_threshold)
    return _survivors(_Candidates.of(boxes, scores), iou_threshold)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """The kernel `batched_nms`."""
    _check("batched_nms", boxes, scores, iou_threshold, idxs=idxs)
    return _survivors(_Candidates.of(boxes, scores, [idxs]), iou_threshold)


def padded_nms(
    boxes: Tensor,
    scores: Tensor,
    groups: Tensor,
    valid: Tensor,
    iou_threshold: float,
    limit: int,
) -> tuple[Tensor, Tensor]:
    """The kernel `padded_nms`."""
    op = "padded_nms"
    _check(op, boxes, scores, iou_threshold, groups=groups, valid=valid)
    check_dtype(op, "valid", valid, torch.bool)
    check(limit >= 0, f"{op}: limit must be zero or more, got {limit}")
    images, count = scores.shape
    image = torch.arange(images, device=boxes.device)[:, None].expand(images, count)
    keys = [groups.flatten(), image.flatten()]
    candidates = _Candidates.of(boxes.flatten(0, 1), scores.flatten(), keys, valid.flatten())
    survivors = _survivors(candidates, iou_threshold)

    # Image by image, each one's best first.
    image = image.flatten()[survivors]
    order = image.argsort(stable=True)
    survivors, image = survivors[order], image[order]
    rank = torch.arange(len(image), device=image.device) - _first_of_equals([image])
    within = rank < limit
    place = image[within], rank[within]
    index = torch.zeros(images, limit, dtype=torch.int64, device=boxes.device)
    kept = torch.zeros(images, limit, dtype=torch.bool, device=boxes.device)
    index[place] = survivors[within] - image[within] * count
    kept[place] = True
    return index, kept


@dataclass(frozen=True)
class _Candidates:
    """Those that take part, so that each group lies together, its best first.

    Attributes:
        boxes: [M, 4].
        index: int64 [M], which of the operator's boxes they are.
        begin: int64 [M], the first one of the same group.
        best_first: int64 [M], the places of all of them by decreasing score.
    """

    boxes: Tensor
    index: Tensor
    begin: Tensor
    best_first: Tensor

    @classmethod
    def of(
        cls,
        boxes: Tensor,
        scores: Tensor,
        keys: list[Tensor] | None = None,
        valid: Tensor | None = None,
    ) -> _Candidates:
        """Boxes [N, 4] and scores [N]; boxes that agree in all `keys` [N] are a group."""
        dtype = torch.promote_types(wide(boxes.dtype), wide(scores.dtype))
        boxes, scores = boxes.to(dtype), scores.to(dtype)
        takes_part = ~(scores.isnan() | boxes.isnan().any(dim=1))
        if valid is not None:
            takes_part &= valid
        (index,) = takes_part.nonzero(as_tuple=True)
        index = index[scores[index].argsort(descending=True, stable=True)]
        place = torch.arange(len(index), device=index.device)
        keys = [key[index] for key in keys or ()]
        for key in keys:
            place = place[key[place].argsort(stable=True)]
        best_first = torch.empty_like(place)
        best_first[place] = torch.arange(len(place), device=place.device)
        begin = _first_of_equals([key[place] for key in keys]) if keys else torch.zeros_like(place)
        index = index[place]
        return cls(boxes[index], index, begin, best_first)


def _survivors(candidates: _Candidates, iou_threshold: float) -> Tensor:
    """int64: the boxes kept, by decreasing score."""
    boxes, begin = candidates.boxes, candidates.begin
    threshold = _rounded_down(iou_threshold, boxes.dtype)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    # Where the groups begin that blocks begin in: earlier boxes mean nothing to them.
    firsts = begin[::_BLOCK].tolist()
    for first, start in zip(firsts, range(0, len(boxes), _BLOCK), strict=True):
        block = slice(start, start + _BLOCK)
        own = boxes[block]
        better = torch.arange(start, start + len(own), device=boxes.device)
        earlier = first + kept[first:start].nonzero()[:, 0]
        left = torch.ones(len(own), dtype=torch.bool, device=boxes.device)
        for some in earlier.split(_BLOCK):
            left &= ~_suppresses(boxes[some], some, own, better, begin[block], threshold).any(dim=0)
        table = _suppresses(own, better, own, better, begin[block], threshold).to(boxes.dtype)
        kept[block] = _settled(table, left)
    places = candidates.best_first
    return candidates.index[places[kept[places]]]


def _suppresses(
    boxes: Tensor,
    place: Tensor,
    others: Tensor,
    others_place: Tensor,
    begin: Tensor,
    threshold: float,
) -> Tensor:
    """bool [K, k]: whether each box overlaps each other one, is better, and of the same group."""
    of_group = (place[:, None] >= begin) & (place[:, None] < others_place)
    return of_group & (iou(boxes, others) > threshold)


def _settled(table: Tensor, left: Tensor) -> Tensor:
    """bool [K]: who stays of those `left`, where table [K, K] is 1 where a row's box suppresses a
    column's."""
    stays = left
    while True:
        before = stays
        stays = left & (before.to(table.dtype) @ table == 0)
        if torch.equal(stays, before):
            return stays


def _first_of_equals(keys: list[Tensor]) -> Tensor:
    """int64 [M]: the first place of those with the same keys [M], which lie together."""
    count = len(keys[0])
    is_first = torch.ones(count, dtype=torch.bool, device=keys[0].device)
    is_first[1:] = torch.stack([key[1:] != key[:-1] for key in keys]).any(dim=0)
    firsts = is_first.nonzero()[:, 0]
    return firsts[is_first.cumsum(0) - 1]


def _rounded_down(threshold: float, dtype: torch.dtype) -> float:
    """The largest number of the type that is not above the threshold, as the kernels compare."""
    rounded = torch.tensor(threshold, dtype=dtype)
    if rounded.item() > threshold:
        rounded = rounded.nextafter(torch.zeros_like(rounded))
    return rounded.item()


def _check(op: str, boxes: Tensor, scores: Tensor, iou_threshold: float, **others: Tensor) -> None:
    wanted = "[B, N, 4]" if "valid" in others else "[N, 4]"
    shape = list(boxes.shape)
    check(
        len(shape) == wanted.count(",") + 1 and shape[-1] == 4,
        f"{op}: boxes must have shape {wanted}, got {shape}",
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
