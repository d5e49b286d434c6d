"""Match detections with objects of their image regardless of category.

Shapes: D detections, G objects, P pairs of a detection and an object of the same image, K
categories.
"""

from dataclasses import dataclass, replace

import numpy as np
from pycocotools.coco import COCO

from detlite.evaluation.overlaps import Pairing, build_pairing, region_overlaps
from detlite.evaluation.reading.ground_truth import (
    GroundTruthArrays,
    read_ground_truth,
)
from detlite.evaluation.results import Results

FOREGROUND_IOU = 0.5  # lowest IoU of a detection and its object


@dataclass(frozen=True, eq=False)
class CrossCategoryMatches:
    """Detections and objects of a dataset, with the overlaps of all pairs.

    Attributes:
        pairing: the highest-ranking detections of each image, by image and decreasing `ranking`.
        truth: the objects, by image.
        overlaps: float64 [P] of `pairing.pairs()`, see `region_overlaps`.
        detection_categories, object_categories: int64 [D] and [G], indices into `category_ids`.
        category_ids: int64 [K], sorted.
    """

    pairing: Pairing
    truth: GroundTruthArrays
    overlaps: np.ndarray
    detection_categories: np.ndarray
    object_categories: np.ndarray
    category_ids: np.ndarray

    @property
    def images(self) -> np.ndarray:
        """int64 [D], the index of each detection's image in `truth.image_ids`."""
        return self.pairing.keys

    def best(self, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest overlap of each detection and its object, float64 and int64 [D].

        Only the pairs `allowed`, bool [P], count. Detections without such a pair have 0 and -1.
        """
        detections, objects = (indices[allowed] for indices in self.pairing.pairs())
        overlaps = self.overlaps[allowed]
        order = np.lexsort((-overlaps, detections))
        paired, first = np.unique(detections[order], return_index=True)
        highest = np.zeros(len(self.detection_categories))
        best_object = np.full(len(highest), -1)
        highest[paired] = overlaps[order[first]]
        best_object[paired] = objects[order[first]]
        return highest, best_object

    def assign(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Match detections and objects greedily in the order of `pairs`, int64 indices in 0..P-1.

        Returns the object of each detection, int64 [D], and the detection of each object, int64
        [G]; -1: none.
        """
        detections, objects = (indices[pairs].tolist() for indices in self.pairing.pairs())
        matched = np.full(len(self.detection_categories), -1)
        found_by = np.full(len(self.object_categories), -1)
        for d, g in zip(detections, objects, strict=True):
            if matched[d] < 0 and found_by[g] < 0:
                matched[d], found_by[g] = g, d
        return matched, found_by


def match_across_categories(
    coco_gt: COCO, results: Results, iou_type: str, max_dets: int
) -> CrossCategoryMatches:
    """Compare boxes ("bbox") or masks ("segm") of the best `max_dets` detections of each image.

    The results must have passed the checks of `evaluate_coco`.
    """
    category_ids = np.array(sorted(coco_gt.cats), np.int64)
    rows = sorted(coco_gt.dataset.get("annotations", []), key=lambda row: row["image_id"])
    # Pairs are made within categories, so merge all categories into one.
    single = COCO()
    single.dataset = {"annotations": [row | {"category_id": 0} for row in rows]}
    single.imgs, single.cats = coco_gt.imgs, {0: {}}
    truth = read_ground_truth(single, iou_type)
    merged = replace(results, category_ids=np.zeros_like(results.category_ids))
    pairing = build_pairing(merged, truth, iou_type, max_dets)
    overlaps, _ = region_overlaps(merged, truth, pairing, iou_type)
    annotated = np.array([row["category_id"] for row in rows], np.int64)
    return CrossCategoryMatches(
        pairing=pairing,
        truth=truth,
        overlaps=overlaps,
        detection_categories=np.searchsorted(category_ids, results.category_ids[pairing.index]),
        object_categories=np.searchsorted(category_ids, annotated),
        category_ids=category_ids,
    )


def confusion_matrix(matches: CrossCategoryMatches, min_score: float) -> np.ndarray:
    """Count how often objects of each category are detected as each category.

    Detections and objects are matched greedily by decreasing IoU, regardless of category.
    Detections below `min_score`, and unmatched ones in a crowd, are ignored.

    Returns:
        int64 [K + 1, K + 1]. Rows are categories of objects, the last row is background; columns
        are categories of detections, the last column is "not detected".
    """
    count = len(matches.category_ids)
    detections, objects = matches.pairing.pairs()
    shown, crowd = matches.pairing.scores >= min_score, matches.truth.crowd
    close = shown[detections] & (matches.overlaps >= FOREGROUND_IOU)
    candidates = np.flatnonzero(close & ~crowd[objects])
    best_first = np.argsort(-matches.overlaps[candidates], kind="stable")
    matched, found_by = matches.assign(candidates[best_first])
    matrix = np.zeros((count + 1, count + 1), np.int64)
    hits = matched >= 0
    pairs = matches.object_categories[matched[hits]], matches.detection_categories[hits]
    np.add.at(matrix, pairs, 1)
    missed = matches.object_categories[~crowd & (found_by < 0)]
    matrix[:count, count] = np.bincount(missed, minlength=count)
    wrong = shown & ~hits
    wrong[detections[close & crowd[objects]]] = False
    matrix[count, :count] = np.bincount(matches.detection_categories[wrong], minlength=count)
    return matrix
