"""The steps of an evaluation by pycocotools and NumPy.

They do not check their arguments, because only detlite.evaluation calls them and invalid arguments
cannot corrupt memory.
"""

from itertools import pairwise

import numpy as np
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.structures.masks.rle import run_lengths

_RLE = dict[str, object]
_MAX_COORDINATE = (1 << 25) / 5


def encode_polygons(
    corners: Tensor, polygons: Tensor, masks: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    corners = corners.nan_to_num(-_MAX_COORDINATE).clamp(-_MAX_COORDINATE, _MAX_COORDINATE)
    rings = [ring.flatten().tolist() for ring in corners.split(polygons.tolist())]
    texts, first = [], 0
    for count, (height, width) in zip(masks.tolist(), sizes.tolist(), strict=True):
        # pycocotools would read four numbers as a box. Repeated corners do not change a polygon.
        parts = [(ring * 3)[:6] if len(ring) < 6 else ring for ring in rings[first : first + count]]
        first += count
        parts = [ring for ring in parts if ring] or [[0.0] * 6]
        texts.append(rle_codec.merge(rle_codec.frPyObjects(parts, height, width))["counts"])
    ends = torch.tensor([len(text) for text in texts], dtype=torch.int64).cumsum(0)
    return torch.tensor(list(b"".join(texts)), dtype=torch.uint8), ends


def box_overlaps(boxes: Tensor, others: Tensor, crowd: Tensor, ranges: Tensor) -> Tensor:
    counts = ranges[:, 1] - ranges[:, 0]
    index = torch.arange(len(boxes)).repeat_interleave(counts)
    other = torch.arange(len(index)) + (ranges[:, 1] - counts.cumsum(0)).repeat_interleave(counts)
    (x, y, w, h), (other_x, other_y, other_w, other_h) = boxes[index].T, others[other].T
    width = torch.minimum(x + w, other_x + other_w) - torch.maximum(x, other_x)
    height = torch.minimum(y + h, other_y + other_h) - torch.maximum(y, other_y)
    shared = torch.where((width > 0) & (height > 0), width * height, 0.0)
    union = torch.where(crowd[other], w * h, w * h + other_w * other_h - shared)
    return torch.where(shared > 0, shared / union, 0.0)


def mask_intersections(
    data: Tensor,
    lengths: Tensor,
    pixels: Tensor,
    index: Tensor,
    other_data: Tensor,
    other_lengths: Tensor,
    other_pixels: Tensor,
    ranges: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    masks = _decode(data, lengths, pixels)
    others = _decode(other_data, other_lengths, other_pixels)
    mask_areas, other_areas = _areas(masks), _areas(others)
    shared = [np.zeros(0, np.int64)]
    for mask, (first, last) in zip(index.tolist(), ranges.tolist(), strict=True):
        shared.append(_intersections(masks[mask], mask_areas[mask], others[first:last]))
    return (
        torch.from_numpy(np.concatenate(shared)),
        torch.from_numpy(mask_areas[index.numpy()]),
        torch.from_numpy(other_areas),
    )


def _decode(data: Tensor, lengths: Tensor, pixels: Tensor) -> list[_RLE | None]:
    """Return the masks as RLEs of one column; None for a text that does not cover its pixels."""
    text, ends = data.numpy().tobytes(), np.cumsum([0, *lengths.tolist()]).tolist()
    masks: list[_RLE | None] = []
    for (begin, end), count in zip(pairwise(ends), pixels.tolist(), strict=True):
        try:
            runs = run_lengths(text[begin:end])
        except ValueError:
            runs = np.array([-1])
        covered = (runs >= 0).all() and runs.sum() == count
        masks.append({"size": [count, 1], "counts": text[begin:end]} if covered else None)
    return masks


def _areas(masks: list[_RLE | None]) -> np.ndarray:
    return np.array([-1 if mask is None else int(rle_codec.area(mask)) for mask in masks], np.int64)


def _intersections(mask: _RLE | None, area: int, others: list[_RLE | None]) -> np.ndarray:
    """Return the pixels that a mask shares with each of others, int64 [len(others)]."""
    shared = np.zeros(len(others), np.int64)
    valid = [k for k, other in enumerate(others) if other is not None]
    if area > 0 and valid:
        # The IoU with a crowd is the intersection divided by the mask's own area.
        ious = rle_codec.iou([mask], [others[k] for k in valid], [1] * len(valid))
        shared[valid] = np.rint(ious[0] * area).astype(np.int64)
    return shared


def match_detections(
    overlaps: Tensor,
    groups: Tensor,
    crowd: Tensor,
    ignored: Tensor,
    uncounted: Tensor,
    thresholds: Tensor,
) -> Tensor:
    sets, detections = uncounted.shape
    outcomes = np.zeros((sets, len(thresholds), detections), np.uint8)
    tables, min_ious = overlaps.numpy(), thresholds.numpy().clip(max=1 - 1e-10)[:, None]
    is_crowd, is_ignored, is_uncounted = crowd.numpy(), ignored.numpy(), uncounted.numpy()
    offset = 0
    for first, last, low, high in groups.tolist():
        table = tables[offset : offset + (last - first) * (high - low)].reshape(last - first, -1)
        offset += table.size
        for area in range(sets):
            group_ignored = is_ignored[area, low:high]
            taken = np.zeros((len(min_ious), high - low), bool)
            for detection, row in enumerate(table, start=first):
                free = (row >= min_ious) & (~taken | is_crowd[low:high])
                counted = free & ~group_ignored
                # Counted objects have priority; among equal overlaps, the last one wins.
                options = np.where(counted.any(axis=1, keepdims=True), counted, free)
                values = np.where(options, row, -1.0)[:, ::-1]
                best = high - low - 1 - values.argmax(axis=1) if high > low else None
                outcome = np.full(len(min_ious), 2 * is_uncounted[area, detection], np.uint8)
                if best is not None:
                    (hit,) = options.any(axis=1).nonzero()
                    taken[hit, best[hit]] = True
                    outcome[hit] = 1 + group_ignored[best[hit]]
                outcomes[area, :, detection] = outcome
    return torch.from_numpy(outcomes)


def precision_recall(
    outcomes: Tensor,
    scores: Tensor,
    ranks: Tensor,
    ends: Tensor,
    positives: Tensor,
    limits: Tensor,
    recall_thresholds: Tensor,
    max_dets: int,
) -> tuple[Tensor, Tensor]:
    areas, thresholds, _ = outcomes.shape
    precision = scores.new_full((thresholds, len(recall_thresholds), len(ends), areas), -1.0)
    recall = scores.new_full((thresholds, len(ends), areas, len(limits)), -1.0)
    for k, (begin, end) in enumerate(pairwise([0, *ends.tolist()])):
        order = begin + scores[begin:end].argsort(descending=True, stable=True)
        for a in positives[:, k].nonzero().flatten().tolist():
            count, ordered = int(positives[a, k]), outcomes[a][:, order]
            for m, limit in enumerate(limits.tolist()):
                recall[:, k, a, m] = (ordered[:, ranks[order] < limit] == 1).sum(1).double() / count
            for t, outcome in enumerate(ordered[:, ranks[order] < max_dets]):
                counted = (outcome != 2).cumsum(0)[outcome == 1]  # [H], at each true positive
                hits = torch.arange(1, len(counted) + 1, dtype=torch.float64)
                best = (hits / (counted + np.spacing(1))).flip(0).cummax(0)[0].flip(0)
                # Precision is 0 at recalls that are not reached.
                best = torch.cat([best, best.new_zeros(1)])
                precision[t, :, k, a] = best[torch.searchsorted(hits / count, recall_thresholds)]
    return precision, recall
