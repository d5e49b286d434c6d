"""Average precision of boxes as PASCAL VOC counts it (its development kit's VOCevaldet.m)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from .ground_truth import Truth, check_results, read_truth
from .metrics import mean_known
from .overlaps import Pairing, pair, region_overlaps
from .results import Results

MIN_IOU = 0.5


def evaluate_voc(coco_gt: COCO, results: Results) -> dict[str, Any]:
    """Average precision at an overlap of one half, over all categories that occur.

    In each picture a detection belongs to the object of its category that it overlaps most, and
    finds it if it overlaps by `MIN_IOU` and is the first, by score, to do so. Difficult objects,
    `iscrowd` here, need not be found, and what finds them does not count.

    Args:
        coco_gt: the ground truth.
        results: the detections, with boxes. May be empty.

    Returns:
        {"AP50": area under the curve of precision over recall, as since 2010, "AP50_07": the mean
        at recalls of 0, 0.1, ..., 1, as until 2009, "per_category": {name: AP50}}, fractions of 1.
        None where there is nothing to find.

    Raises:
        DataError: a result has no sound box, or names an unknown image or category.
    """
    check_results(results, coco_gt, ["bbox"])
    truth = read_truth(coco_gt, "bbox")
    pairing = pair(results, truth)
    # Crowds, here difficult objects, overlap as others do.
    overlaps, _ = region_overlaps(
        results, replace(truth, crowd=np.zeros_like(truth.crowd)), pairing, "bbox"
    )
    chosen = _chosen(pairing, overlaps)
    areas: dict[str, float | None] = {}
    eleven = []
    for category in coco_gt.dataset["categories"]:
        name, k = category["name"], np.searchsorted(truth.category_ids, category["id"])
        positives = int((~truth.crowd[truth.categories == k]).sum())
        if not positives:
            areas[name] = None
            continue
        hits = _hits(truth, pairing, chosen, int(k))
        right = np.cumsum(hits)
        recall, precision = right / positives, right / np.arange(1, len(hits) + 1)
        areas[name] = area_under_curve(recall, precision)
        eleven.append(eleven_point_mean(recall, precision))
    return {
        "AP50": mean_known(areas.values()),
        "AP50_07": mean_known(eleven),
        "per_category": areas,
    }


def _chosen(pairing: Pairing, overlaps: np.ndarray) -> np.ndarray:
    """The object that each detection overlaps most, int64 [D]; -1 where it does by too little."""
    detections, objects = pairing.pairs()
    # By detection, the highest overlap first, and of equals the first object.
    order = np.lexsort((-overlaps, detections))
    owners, first = np.unique(detections[order], return_index=True)
    best = order[first]
    chosen = np.full(len(pairing.index), -1)
    chosen[owners] = np.where(overlaps[best] >= MIN_IOU, objects[best], -1)
    return chosen


def _hits(truth: Truth, pairing: Pairing, chosen: np.ndarray, category: int) -> np.ndarray:
    """Of the detections of a category that count, by decreasing score: whether each is right."""
    own = np.flatnonzero(pairing.categories == category)
    objects = chosen[own[np.lexsort((pairing.index[own], -pairing.scores[own]))]]
    objects = objects[(objects < 0) | ~truth.crowd[objects]]
    hits = np.zeros(len(objects), bool)
    hits[np.unique(objects, return_index=True)[1]] = True
    return hits & (objects >= 0)


def area_under_curve(recall: np.ndarray, precision: np.ndarray) -> float:
    """The area under the best precision at each recall or a higher one, [D] each."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def eleven_point_mean(recall: np.ndarray, precision: np.ndarray) -> float:
    """The mean of the best precision at recalls of at least 0, 0.1, ..., 1, [D] each."""
    # As tenths, so that a recall of 3 of 10 reaches 0.3.
    reached = [precision[np.round(recall * 10, 9) >= tenth] for tenth in range(11)]
    return float(np.mean([part.max(initial=0.0) for part in reached]))
