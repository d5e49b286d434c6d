"""Detections beside the objects of their image and category: which, and how much they overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from detlite import ops
from detlite.data.errors import DataError
from detlite.structures.masks.rle import EncodedMasks

from .ground_truth import Truth
from .results import Results

_CHUNK = 1 << 16  # pairs of keypoints at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Pairing:
    """The D detections that are measured, by category, image and falling score.

    Attributes:
        index: int64 [D], their places in the results.
        scores: float64 [D].
        keys: int64 [D], increasing, see `Truth.keys`.
        categories: int64 [D], places in `Truth.category_ids`.
        ranks: int64 [D], how many of the same image and category come before.
        ranges: int64 [D, 2], the first object of the same image and category, and the one after
            the last.
        groups: int64 [Q, 4], the bounds of the Q images and categories in the detections and in
            the objects, see `ops.match_detections`.
    """

    index: np.ndarray
    scores: np.ndarray
    keys: np.ndarray
    categories: np.ndarray
    ranks: np.ndarray
    ranges: np.ndarray
    groups: np.ndarray

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [P] each: detections and objects of the same image and category, by detection."""
        counts = self.ranges[:, 1] - self.ranges[:, 0]
        ends = counts.cumsum()
        detections = np.repeat(np.arange(len(counts)), counts)
        objects = np.arange(len(detections)) + np.repeat(self.ranges[:, 1] - ends, counts)
        return detections, objects


def pair(
    results: Results, truth: Truth, most: int | None = None, chosen: np.ndarray | None = None
) -> Pairing:
    """The best `most` detections of each image and category, of those with the numbers `chosen`."""
    index = np.arange(len(results)) if chosen is None else chosen
    scores = results.scores[index].astype(np.float64)
    keys = truth.keys_of(results.image_ids[index], results.category_ids[index])
    order = np.lexsort((-scores, keys))
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    ranks = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    if most is not None:
        kept = ranks < most
        order, keys, ranks = order[kept], keys[kept], ranks[kept]
        starts = np.flatnonzero(ranks == 0)
    objects = np.stack([np.searchsorted(truth.keys, keys[starts], s) for s in ("left", "right")], 1)
    ends = np.append(starts, len(keys))[1:]
    return Pairing(
        index=index[order],
        scores=scores[order],
        keys=keys,
        categories=keys // max(len(truth.image_ids), 1),
        ranks=ranks,
        ranges=np.repeat(objects, ends - starts, axis=0),
        groups=np.concatenate([starts[:, None], ends[:, None], objects], axis=1),
    )


def region_overlaps(
    results: Results, truth: Truth, pairing: Pairing, iou_type: str
) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps float64 [P] of the pairs, of boxes ("bbox") or masks ("segm"), and the detections'
    areas float64 [D].

    Raises:
        DataError: a mask is not run lengths that cover its image.
    """
    if iou_type == "segm":
        return mask_overlaps(results, truth, pairing)
    if results.boxes is None:
        return np.empty(0), np.empty(0)
    boxes = results.boxes[pairing.index].astype(np.float64)
    return box_overlaps(boxes, truth, pairing), boxes[:, 2] * boxes[:, 3]


def box_overlaps(boxes: np.ndarray, truth: Truth, pairing: Pairing) -> np.ndarray:
    """Overlaps float64 [P] of the pairs: intersection over union, or over the detection's own
    area where the object is a crowd.

    Args:
        boxes: float64 [D, 4] xywh of the detections of `pairing`.
    """
    detections, objects = pairing.pairs()
    x, y, w, h = boxes.T[:, detections]
    other_x, other_y, other_w, other_h = truth.boxes.T[:, objects]
    wide = np.minimum(x + w, other_x + other_w) - np.maximum(x, other_x)
    high = np.minimum(y + h, other_y + other_h) - np.maximum(y, other_y)
    shared = np.where((wide > 0) & (high > 0), wide * high, 0.0)
    return _over_union(shared, w * h, other_w * other_h, truth.crowd[objects])


def mask_overlaps(
    results: Results, truth: Truth, pairing: Pairing
) -> tuple[np.ndarray, np.ndarray]:
    """The same of masks, and their areas float64 [D] in the detections.

    Raises:
        DataError: a mask is not run lengths that cover its image.
    """
    shared, areas, sizes = mask_intersections(results, truth, pairing)
    detections, objects = pairing.pairs()
    overlaps = _over_union(shared, areas[detections], sizes[objects], truth.crowd[objects])
    return overlaps, areas


def mask_intersections(
    results: Results, truth: Truth, pairing: Pairing
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels float64 that the masks of the pairs share, [P], and the areas of the detections, [D],
    and of the objects, [G].

    Raises:
        DataError: a mask is not run lengths that cover its image.
    """
    assert truth.masks is not None
    masks = EncodedMasks.from_rles([]) if results.masks is None else results.masks
    found = count_shared(masks, pairing.index, truth.masks, pairing.ranges)
    unsound = "its mask is not run lengths that cover its image"
    _, areas, sizes = found
    if (areas < 0).any():
        raise DataError(f"result {pairing.index[areas < 0].min()}: {unsound}")
    if (sizes < 0).any():
        raise DataError(f"ground truth: annotation {truth.ids[sizes < 0].min()}: {unsound}")
    return found


def count_shared(
    masks: EncodedMasks, index: np.ndarray, others: EncodedMasks, ranges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`ops.mask_intersections` of the masks with numbers `index` with others, in float64."""
    sides = [(side.data, side.lengths, side.sizes.prod(axis=1)) for side in (masks, others)]
    arrays = (*sides[0], index, *sides[1], ranges)
    shared, areas, sizes = ops.mask_intersections(*map(torch.from_numpy, arrays))
    return shared.double().numpy(), areas.double().numpy(), sizes.double().numpy()


def keypoint_overlaps(
    keypoints: np.ndarray, truth: Truth, pairing: Pairing, sigmas: np.ndarray
) -> np.ndarray:
    """Similarities of keypoints (OKS) float64 [P] of the pairs.

    An object without visible keypoints is compared by how far the detection's lie outside of its
    box, three times as wide and high.

    Args:
        keypoints: float64 [D, N, 3] of the detections of `pairing`.
        sigmas: [N], see `evaluate_coco`.
    """
    assert truth.keypoints is not None
    detections, objects = pairing.pairs()
    overlaps = np.zeros(len(detections))
    if not keypoints.shape[1]:
        return overlaps
    x, y, w, h = truth.boxes.T[:, :, None]  # [G, 1]
    low = np.stack([x - w, y - h], axis=2)
    high = np.stack([x + 2 * w, y + 2 * h], axis=2)
    visible = truth.keypoints[:, :, 2] > 0
    hidden = visible.sum(axis=1) == 0
    scale = 2 * (2 * sigmas) ** 2 * (truth.areas[:, None] + np.spacing(1))  # [G, N]
    for first in range(0, len(detections), _CHUNK):
        d, g = detections[first : first + _CHUNK], objects[first : first + _CHUNK]
        found = keypoints[d, :, :2]
        off = found - truth.keypoints[g, :, :2]
        outside = np.maximum(low[g] - found, 0) + np.maximum(found - high[g], 0)
        off = np.where(hidden[g, None, None], outside, off)
        likeness = np.exp(-(off**2).sum(axis=2) / scale[g])
        counted = visible[g] | hidden[g, None]
        overlaps[first : first + _CHUNK] = (likeness * counted).sum(axis=1) / counted.sum(axis=1)
    return overlaps


def _over_union(
    shared: np.ndarray, area: np.ndarray, other: np.ndarray, crowd: np.ndarray
) -> np.ndarray:
    union = np.where(crowd, area, area + other - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
