"""Pair detections with the objects of their image and category, and compute their overlaps.

D detections, G objects, P pairs of both.
"""

from dataclasses import dataclass

import numpy as np
import torch

from detlite import ops
from detlite.files.errors import DataError
from detlite.structures.masks.rle import EncodedMasks

from .reading.ground_truth import GroundTruthArrays
from .results import Results

_CHUNK = 1 << 16  # pairs of keypoints per step, which limits the memory


@dataclass(frozen=True, eq=False)
class Pairing:
    """The evaluated detections, sorted by category, image and decreasing `ranking`."""

    index: np.ndarray  # int64 [D], indices into the results
    scores: np.ndarray  # float64 [D], to which thresholds apply
    ranking: np.ndarray  # float64 [D], see `Results.ranking`
    keys: np.ndarray  # int64 [D], increasing, see `GroundTruthArrays.keys`
    categories: np.ndarray  # int64 [D], indices into `GroundTruthArrays.category_ids`
    ranks: np.ndarray  # int64 [D], rank within the image and category, from 0
    ranges: np.ndarray  # int64 [D, 2], first and end object of the same image and category
    # int64 [Q, 4], the bounds of Q images and categories in the detections and in the objects.
    groups: np.ndarray

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the detection and the object of every pair, int64 [P] each, by detection."""
        counts = self.ranges[:, 1] - self.ranges[:, 0]
        ends = counts.cumsum()
        detections = np.repeat(np.arange(len(counts)), counts)
        objects = np.arange(len(detections)) + np.repeat(self.ranges[:, 1] - ends, counts)
        return detections, objects


def build_pairing(
    results: Results,
    truth: GroundTruthArrays,
    iou_type: str,
    max_dets: int | None = None,
    index: np.ndarray | None = None,
) -> Pairing:
    """Sort the detections and find the objects of their image and category.

    `index`, int64 [N], selects detections (None: all). Of these, only the `max_dets`
    highest-ranking ones per image and category are used.
    """
    index = np.arange(len(results)) if index is None else index
    ranking = results.ranking(iou_type)[index].astype(np.float64)
    keys = truth.keys_of(results.image_ids[index], results.category_ids[index])
    order = _stable_order(keys, max(len(truth.image_ids), 1))
    # Detectors list the detections of an image by decreasing score.
    if ((np.diff(keys[order]) == 0) & (np.diff(ranking[order]) > 0)).any():
        order = np.lexsort((-ranking, keys))
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    ranks = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    if max_dets is not None:
        kept = ranks < max_dets
        order, keys, ranks = order[kept], keys[kept], ranks[kept]
        starts = np.flatnonzero(ranks == 0)
    objects = np.stack([np.searchsorted(truth.keys, keys[starts], s) for s in ("left", "right")], 1)
    ends = np.append(starts, len(keys))[1:]
    return Pairing(
        index=index[order],
        scores=results.scores[index[order]].astype(np.float64),
        ranking=ranking[order],
        keys=keys,
        categories=keys // max(len(truth.image_ids), 1),
        ranks=ranks,
        ranges=np.repeat(objects, ends - starts, axis=0),
        groups=np.concatenate([starts[:, None], ends[:, None], objects], axis=1),
    )


def _stable_order(keys: np.ndarray, count: int) -> np.ndarray:
    """Return the order that sorts keys k * count + i. Results are mostly sorted by i already."""
    categories, images = np.divmod(keys, count)
    if categories.max(initial=0) > np.iinfo(np.uint16).max:
        return np.argsort(keys, kind="stable")
    order = np.argsort(images, kind="stable")
    # numpy sorts 16 bits by radix.
    return order[np.argsort(categories[order].astype(np.uint16), kind="stable")]


def region_overlaps(
    results: Results, truth: GroundTruthArrays, pairing: Pairing, iou_type: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the IoU float64 [P] of boxes ("bbox") or masks ("segm") and the detections' areas [D].

    For a crowd the denominator is the area of the detection instead of the union.
    """
    if iou_type == "bbox":
        if results.boxes is None:
            return np.empty(0), np.empty(0)
        boxes = results.boxes[pairing.index].astype(np.float64)
        arrays = boxes, truth.boxes, truth.crowd, pairing.ranges
        return ops.box_overlaps(*map(torch.from_numpy, arrays)).numpy(), boxes[:, 2:].prod(axis=1)
    detections, objects = pairing.pairs()
    shared, areas, sizes = mask_intersections(results, truth, pairing)
    area = areas[detections]
    union = np.where(truth.crowd[objects], area, area + sizes[objects] - shared)
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0), areas


def mask_intersections(
    results: Results, truth: GroundTruthArrays, pairing: Pairing
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the shared pixels [P] of the pairs and the areas [D] and [G], all float64.

    Raises:
        DataError: a mask has run lengths that do not cover its image.
    """
    assert truth.masks is not None
    masks = EncodedMasks.from_rles([]) if results.masks is None else results.masks
    shared, areas, sizes = count_intersections(masks, pairing.index, truth.masks, pairing.ranges)
    problem = "the run lengths of its mask do not cover its image"
    if (areas < 0).any():
        raise DataError(f"result {pairing.index[areas < 0].min()}: {problem}")
    if (sizes < 0).any():
        raise DataError(f"ground truth: annotation {truth.ids[sizes < 0].min()}: {problem}")
    return shared, areas, sizes


def count_intersections(
    masks: EncodedMasks, index: np.ndarray, others: EncodedMasks, ranges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Call `ops.mask_intersections` for the masks at `index`, and return float64 arrays."""
    sides = [(side.data, side.lengths, side.sizes.prod(axis=1)) for side in (masks, others)]
    arrays = (*sides[0], index, *sides[1], ranges)
    shared, areas, sizes = ops.mask_intersections(*map(torch.from_numpy, arrays))
    return shared.double().numpy(), areas.double().numpy(), sizes.double().numpy()


def keypoint_overlaps(
    keypoints: np.ndarray, truth: GroundTruthArrays, pairing: Pairing, sigmas: np.ndarray
) -> np.ndarray:
    """Return the object keypoint similarity (OKS) float64 [P] of the pairs.

    For an object without visible keypoints, detected keypoints are compared with a box three times
    as wide and high as the object's. `keypoints` float64 [D, N, 3] belong to the detections of
    `pairing`. `evaluate_coco` describes the `sigmas` [N].
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
        detected = keypoints[d, :, :2]
        distance = detected - truth.keypoints[g, :, :2]
        outside = np.maximum(low[g] - detected, 0) + np.maximum(detected - high[g], 0)
        distance = np.where(hidden[g, None, None], outside, distance)
        similarity = np.exp(-(distance**2).sum(axis=2) / scale[g])
        counted = visible[g] | hidden[g, None]
        overlaps[first : first + _CHUNK] = (similarity * counted).sum(axis=1) / counted.sum(axis=1)
    return overlaps
