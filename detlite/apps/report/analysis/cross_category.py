"""Detections beside all objects of their image, whatever their category."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from pycocotools.coco import COCO

from detlite.evaluation.ground_truth import Truth, read_truth
from detlite.evaluation.overlaps import Pairing, pair, region_overlaps
from detlite.evaluation.results import Results


@dataclass(frozen=True, eq=False)
class Across:
    """D detections and G objects of a data set, compared over the borders of K categories.

    Attributes:
        pairing: the best detections of each image, by image and falling score.
        truth: the objects, by image.
        overlaps: float64 [P] of `pairing.pairs()`: IoU, or over the detection's own area where
            the object is a crowd.
        detected, labelled: int64 [D] and [G], their categories as places in `category_ids`.
        category_ids: int64 [K], increasing.
    """

    pairing: Pairing
    truth: Truth
    overlaps: np.ndarray
    detected: np.ndarray
    labelled: np.ndarray
    category_ids: np.ndarray

    @property
    def images(self) -> np.ndarray:
        """int64 [D], of each detection its image's place in `truth.image_ids`."""
        return self.pairing.keys

    def best(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each detection the highest overlap with an object, and which: float64 and int64 [D].

        Args:
            wanted: bool [P], the pairs that count. Without one it is 0 and -1.
        """
        detections, objects = (part[wanted] for part in self.pairing.pairs())
        overlaps = self.overlaps[wanted]
        order = np.lexsort((-overlaps, detections))
        owners, first = np.unique(detections[order], return_index=True)
        highest = np.zeros(len(self.detected))
        which = np.full(len(self.detected), -1)
        highest[owners] = overlaps[order[first]]
        which[owners] = objects[order[first]]
        return highest, which


def compare_across(coco_gt: COCO, results: Results, iou_type: str, most: int) -> Across:
    """Compares boxes ("bbox") or masks ("segm") of the best `most` detections of each image.

    Raises:
        DataError: as from `evaluate_coco`, whose checks come first.
    """
    category_ids = np.array(sorted(coco_gt.cats), np.int64)
    rows = sorted(coco_gt.dataset.get("annotations", []), key=lambda row: row["image_id"])
    # With one category for all, what compares within categories compares everything.
    single = COCO()
    single.dataset = coco_gt.dataset | {"annotations": [row | {"category_id": 0} for row in rows]}
    single.imgs, single.cats = coco_gt.imgs, {0: {"id": 0, "name": "object"}}
    truth = read_truth(single, iou_type)
    merged = replace(results, category_ids=np.zeros_like(results.category_ids))
    pairing = pair(merged, truth, most)
    overlaps, _ = region_overlaps(merged, truth, pairing, iou_type)
    labelled = np.array([row["category_id"] for row in rows], np.int64)
    return Across(
        pairing=pairing,
        truth=truth,
        overlaps=overlaps,
        detected=np.searchsorted(category_ids, results.category_ids[pairing.index]),
        labelled=np.searchsorted(category_ids, labelled),
        category_ids=category_ids,
    )
