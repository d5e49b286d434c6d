"""LVIS's average precision (lvisdataset.org): the numbers of the package `lvis` 0.5.3.

LVIS is a federated data set: of each picture only some categories are annotated. What is found of
the others does not count, nor do false alarms of categories that are not annotated exhaustively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.errors import DataError

from .ground_truth import Truth, check_results, read_truth
from .matching import AREAS, Scored, match, score
from .overlaps import pair, region_overlaps
from .results import Results

MAX_DETS = 300  # LVIS's own: of a picture, over all categories

# What tells which categories are annotated, and how often they occur: a list and its field.
_FIELDS = (
    ("images", "neg_category_ids"),
    ("images", "not_exhaustive_category_ids"),
    ("categories", "frequency"),
)


def check_lvis(coco_gt: COCO) -> None:
    """Raises DataError if the ground truth lacks one of LVIS's fields."""
    for key, field in _FIELDS:
        for row in coco_gt.dataset[key]:
            if field not in row:
                raise DataError(
                    f"ground truth: {key}, id {row['id']}: no {field!r}, which LVIS's evaluation "
                    "needs; if this is not an LVIS file, give its entry type coco"
                )


def evaluate_lvis(
    coco_gt: COCO, results: Results, iou_types: Sequence[str] = ("bbox", "segm")
) -> dict[str, dict[str, Any]]:
    """Scores `results` as LVIS does, the best MAX_DETS of each picture.

    Args:
        coco_gt: the ground truth, with LVIS's neg_category_ids and not_exhaustive_category_ids of
            each image and the frequency ("r", "c" or "f") of each category. It is not changed.
        results: the detections, with boxes and masks as `iou_types` need them. May be empty.
        iou_types: which of "bbox" and "segm".

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf" (rare, common and
        frequent categories), "AR@300", "ARs@300", ..., "per_category": {name: AP}}, ...},
        fractions of 1. None where there is nothing to find.

    Raises:
        DataError: the ground truth lacks one of LVIS's fields, or a result what is scored, or it
            names an unknown image or category.
    """
    check_lvis(coco_gt)
    check_results(results, coco_gt, iou_types)
    metrics = {}
    for iou_type in iou_types:
        truth = read_truth(coco_gt, iou_type)
        # LVIS has no crowds, and the package leaves out whatever has no area, on both sides.
        empty = truth.areas <= 0
        truth = replace(truth, crowd=np.zeros_like(empty), ignored=empty)
        negative, partial = (
            _listed(coco_gt, truth, f"{what}_category_ids") for what in ("neg", "not_exhaustive")
        )
        best = _best_of_each_image(results)
        keys = truth.keys_of(results.image_ids[best], results.category_ids[best])
        annotated = np.isin(keys, truth.keys[~empty]) | np.isin(keys, negative)
        pairing = pair(results, truth, chosen=best[annotated])
        overlaps, sizes = region_overlaps(results, truth, pairing, iou_type)
        overlaps[empty[pairing.pairs()[1]]] = 0
        uncounted = np.isin(pairing.keys, partial) | (sizes <= 0)
        found = score(
            match(pairing, truth, overlaps, sizes, tuple(AREAS), [MAX_DETS], MAX_DETS, uncounted)
        )
        categories = [coco_gt.cats[number] for number in truth.category_ids.tolist()]
        metrics[iou_type] = _summarize(found, categories)
    return metrics


def _listed(coco_gt: COCO, truth: Truth, field: str) -> np.ndarray:
    """Keys of the categories that the images list in a field, see `Truth.keys`."""
    rows = [
        (image["id"], number)
        for image in coco_gt.dataset["images"]
        for number in image[field]
        if number in coco_gt.cats
    ]
    return truth.keys_of(*np.array(rows, np.int64).reshape(-1, 2).T)


def _best_of_each_image(results: Results) -> np.ndarray:
    """The numbers of the best MAX_DETS detections of each image, in their order."""
    order = np.lexsort((-results.scores, results.image_ids))
    images = results.image_ids[order]
    ranks = np.arange(len(order)) - np.searchsorted(images, images)
    return np.sort(order[ranks < MAX_DETS])


def _summarize(found: Scored, categories: Sequence[dict[str, Any]]) -> dict[str, Any]:
    letters = {area[0]: area for area in found.areas if area != "all"}  # s, m, l
    metrics: dict[str, Any] = {"AP": found.ap(), "AP50": found.ap(0.5), "AP75": found.ap(0.75)}
    metrics |= {f"AP{letter}": found.ap(area=area) for letter, area in letters.items()}
    for letter in "rcf":
        places = [k for k, row in enumerate(categories) if row["frequency"] == letter]
        metrics[f"AP{letter}"] = found.ap(categories=places)
    metrics[f"AR@{MAX_DETS}"] = found.ar()
    metrics |= {f"AR{letter}@{MAX_DETS}": found.ar(area=a) for letter, a in letters.items()}
    metrics["per_category"] = {
        row["name"]: found.ap(categories=k) for k, row in enumerate(categories)
    }
    return metrics
