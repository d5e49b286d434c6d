"""LVIS average precision (lvisdataset.org). The values equal the package `lvis` 0.5.3.

LVIS is a federated dataset: only some categories are annotated in each image. Detections of other
categories do not count, nor do false positives of categories that are not annotated exhaustively.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError

from .evaluators import EVALUATORS, Evaluator, predicted_kinds
from .matching import AREA_RANGES, Measures, accumulate, match
from .metrics import Metrics
from .overlaps import build_pairing, region_overlaps
from .reading.ground_truth import GroundTruthArrays, check_results, read_ground_truth
from .results import Results

MAX_DETS = 300  # per image, over all categories

# The additional fields of LVIS's images and categories; a frequency is "r", "c" or "f".
_FIELDS = {
    "images": ["neg_category_ids", "not_exhaustive_category_ids"],
    "categories": ["frequency"],
}


def check_lvis(coco_gt: COCO) -> None:
    """Raise DataError if the ground truth lacks one of LVIS's fields."""
    for key, fields in _FIELDS.items():
        for row in coco_gt.dataset[key]:
            for field in (field for field in fields if field not in row):
                raise DataError(
                    f"ground truth: {key}, id {row['id']}: no {field!r}, which LVIS's evaluation "
                    "needs; if this is not an LVIS file, set `type: coco` in its catalog entry"
                )


def evaluate_lvis(
    coco_gt: COCO, results: Results, iou_types: Sequence[str] = ("bbox", "segm")
) -> Metrics:
    """Evaluate the MAX_DETS highest-scoring detections of each image.

    Args:
        coco_gt: the ground truth with the fields that `check_lvis` checks.
        results: with boxes and masks as `iou_types` need them. May be empty.
        iou_types: some of "bbox" and "segm".

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf" (rare, common and
        frequent categories), "AR@300", "ARs@300", ..., "per_category": {name: AP}}, ...} as
        fractions, None if there are no such objects.
    """
    check_lvis(coco_gt)
    check_results(results, coco_gt, iou_types)
    metrics = {}
    for iou_type in iou_types:
        truth = read_ground_truth(coco_gt, iou_type)
        # LVIS has no crowds, and the package ignores objects and detections without area.
        empty = truth.areas <= 0
        truth = replace(truth, crowd=np.zeros_like(empty), ignored=empty)
        negative = _listed_keys(coco_gt, truth, "neg_category_ids")
        not_exhaustive = _listed_keys(coco_gt, truth, "not_exhaustive_category_ids")
        best = _best_of_each_image(results, iou_type)
        keys = truth.keys_of(results.image_ids[best], results.category_ids[best])
        annotated = np.isin(keys, truth.keys[~empty]) | np.isin(keys, negative)
        pairing = build_pairing(results, truth, iou_type, index=best[annotated])
        overlaps, sizes = region_overlaps(results, truth, pairing, iou_type)
        overlaps[empty[pairing.pairs()[1]]] = 0
        ignore_unmatched = np.isin(pairing.keys, not_exhaustive) | (sizes <= 0)
        measures = Measures(AREA_RANGES, [MAX_DETS], MAX_DETS)
        matched = match(pairing, truth, overlaps, sizes, measures, ignore_unmatched)
        tables = accumulate(matched)
        categories = [coco_gt.cats[number] for number in truth.category_ids.tolist()]
        more = {}
        for letter in "rcf":
            indices = [k for k, row in enumerate(categories) if row["frequency"] == letter]
            more[f"AP{letter}"] = tables.ap(categories=indices)
        more[f"AR@{MAX_DETS}"] = tables.ar()
        names = [row["name"] for row in categories]
        metrics[iou_type] = tables.summarize(names, more, f"@{MAX_DETS}")
    return metrics


def _listed_keys(coco_gt: COCO, truth: GroundTruthArrays, field: str) -> np.ndarray:
    """Return the keys (`GroundTruthArrays.keys`) of the categories that images list in a field."""
    rows = [
        (image["id"], number)
        for image in coco_gt.dataset["images"]
        for number in image[field]
        if number in coco_gt.cats
    ]
    return truth.keys_of(*np.array(rows, np.int64).reshape(-1, 2).T)


def _best_of_each_image(results: Results, iou_type: str) -> np.ndarray:
    """Return the sorted indices of the MAX_DETS highest-ranking detections of each image."""
    order = np.lexsort((-results.ranking(iou_type), results.image_ids))
    images = results.image_ids[order]
    ranks = np.arange(len(order)) - np.searchsorted(images, images)
    return np.sort(order[ranks < MAX_DETS])


@EVALUATORS.register("lvis")
class LvisEvaluator(Evaluator):
    """LVIS AP of boxes and masks: "bbox", "segm"."""

    kind = "bbox"

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        check_lvis(build_coco_gt(dataset, annotations=False))

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        kinds = [kind for kind in predicted_kinds(cfg) if kind != "keypoints"]
        return evaluate_lvis(build_coco_gt(dataset), results, kinds)
