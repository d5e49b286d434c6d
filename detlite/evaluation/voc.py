"""PASCAL VOC average precision of boxes (VOCevaldet.m of its development kit)."""

from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt

from .evaluators import EVALUATORS, Evaluator
from .metrics import Metrics, mean_or_none
from .results import Results
from .results_file import check_results
from .truth import Objects, most_overlapped, read_objects

MIN_IOU = 0.5


def evaluate_voc(coco_gt: COCO, results: Results) -> dict[str, Any]:
    """Compute the average precision at IoU 0.5 over all categories that occur.

    Each detection is assigned to the object of its category that it overlaps most. The
    highest-scoring detection of an object with an IoU of at least `MIN_IOU` is a true positive.
    Difficult objects (`iscrowd`) and the detections assigned to them do not count.

    Returns:
        {"AP50": area under the precision-recall curve (since 2010), "AP50_07": mean precision at
        the recalls 0, 0.1, ..., 1 (until 2009), "per_category": {name: AP50}} as fractions.
        None if there are no objects.
    """
    check_results(results, coco_gt, ["bbox"])
    objects = read_objects(coco_gt)
    assigned, difficult = _assign_objects(objects, results), objects.crowds
    per_category: dict[str, float | None] = {}
    eleven_point = []
    for category in coco_gt.dataset["categories"]:
        name = category["name"]
        positives = int((~difficult[objects.category_ids == category["id"]]).sum())
        if not positives:
            per_category[name] = None
            continue
        detections = np.flatnonzero(results.category_ids == category["id"])
        best_first = detections[np.argsort(-results.scores[detections], kind="stable")]
        hits = _true_positives(assigned[best_first], difficult)
        true_positives = np.cumsum(hits)
        recall, precision = true_positives / positives, true_positives / np.arange(1, len(hits) + 1)
        per_category[name] = area_under_curve(recall, precision)
        eleven_point.append(eleven_point_mean(recall, precision))
    return {
        "AP50": mean_or_none(per_category.values()),
        "AP50_07": mean_or_none(eleven_point),
        "per_category": per_category,
    }


def _assign_objects(objects: Objects, results: Results) -> np.ndarray:
    """Return the annotation that each detection overlaps most, int64 [D]; -1 below `MIN_IOU`."""
    assert results.boxes is not None
    pairs = [np.stack([rows.image_ids, rows.category_ids], axis=1) for rows in (objects, results)]
    keys = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)[1].reshape(-1)
    known, found = np.split(keys, [len(pairs[0])])
    same = replace(objects, crowds=np.zeros_like(objects.crowds))  # difficult ones, too
    index, ious = most_overlapped(results.boxes.astype(np.float64), found, same, known)
    return np.where(ious >= MIN_IOU, index, -1)


def _true_positives(assigned: np.ndarray, difficult: np.ndarray) -> np.ndarray:
    """Return the true positives, bool, of the detections that count.

    `assigned`, int64 [D], are the objects of detections in decreasing order of their scores.
    """
    counted = assigned < 0
    counted[~counted] = ~difficult[assigned[~counted]]
    objects = assigned[counted]
    hits = np.zeros(len(objects), bool)
    hits[np.unique(objects, return_index=True)[1]] = True
    return hits & (objects >= 0)


def area_under_curve(recall: np.ndarray, precision: np.ndarray) -> float:
    """Return the area under the monotone envelope of precision [D] over recall [D]."""
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * envelope))


def eleven_point_mean(recall: np.ndarray, precision: np.ndarray) -> float:
    """Return the mean of the highest precision [D] at recalls [D] of at least 0, 0.1, ..., 1."""
    # Recall is compared in rounded tenths, so that 3 of 10 objects reach 0.3.
    reached = [precision[np.round(recall * 10, 9) >= tenth] for tenth in range(11)]
    return float(np.mean([values.max(initial=0.0) for values in reached]))


@EVALUATORS.register("voc")
class VocEvaluator(Evaluator):
    """PASCAL VOC AP of boxes: "voc"."""

    kind = "bbox"

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"voc": evaluate_voc(build_coco_gt(dataset), results)}
