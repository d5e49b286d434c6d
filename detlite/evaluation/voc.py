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
from .overlaps import Pairing, build_pairing, region_overlaps
from .reading.ground_truth import GroundTruthArrays, check_results, read_ground_truth
from .results import Results

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
    truth = read_ground_truth(coco_gt, "bbox")
    pairing = build_pairing(results, truth, "bbox")
    # Difficult objects are marked as crowds, but their IoU is the usual one.
    no_crowds = replace(truth, crowd=np.zeros_like(truth.crowd))
    ious, _ = region_overlaps(results, no_crowds, pairing, "bbox")
    assigned = _assign_objects(pairing, ious)
    per_category: dict[str, float | None] = {}
    eleven_point = []
    for category in coco_gt.dataset["categories"]:
        name, k = category["name"], np.searchsorted(truth.category_ids, category["id"])
        positives = int((~truth.crowd[truth.categories == k]).sum())
        if not positives:
            per_category[name] = None
            continue
        hits = _true_positives(truth, pairing, assigned, int(k))
        true_positives = np.cumsum(hits)
        recall, precision = true_positives / positives, true_positives / np.arange(1, len(hits) + 1)
        per_category[name] = area_under_curve(recall, precision)
        eleven_point.append(eleven_point_mean(recall, precision))
    return {
        "AP50": mean_or_none(per_category.values()),
        "AP50_07": mean_or_none(eleven_point),
        "per_category": per_category,
    }


def _assign_objects(pairing: Pairing, ious: np.ndarray) -> np.ndarray:
    """Return the object that each detection overlaps most, int64 [D]; -1 below `MIN_IOU`."""
    detections, objects = pairing.pairs()
    # Sorted by detection, then by decreasing IoU; of equal ones the first object wins.
    order = np.lexsort((-ious, detections))
    paired, first = np.unique(detections[order], return_index=True)
    best = order[first]
    assigned = np.full(len(pairing.index), -1)
    assigned[paired] = np.where(ious[best] >= MIN_IOU, objects[best], -1)
    return assigned


def _true_positives(
    truth: GroundTruthArrays, pairing: Pairing, assigned: np.ndarray, category: int
) -> np.ndarray:
    """Return a mask of the true positives among the counted detections, by decreasing score."""
    detections = np.flatnonzero(pairing.categories == category)
    order = np.lexsort((pairing.index[detections], -pairing.scores[detections]))
    objects = assigned[detections[order]]
    objects = objects[(objects < 0) | ~truth.crowd[objects]]
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
