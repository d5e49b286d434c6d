"""LVIS average precision (lvisdataset.org), by hotcoco. The values equal the package `lvis` 0.5.3.

LVIS is a federated dataset: only some categories are annotated in each image. Detections of other
categories do not count, nor do false positives of categories that are not annotated exhaustively.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError

from .coco import PrecisionRecall
from .engine import AREA_RANGES, Measures, run_engine
from .evaluators import EVALUATORS, Evaluator, predicted_kinds
from .metrics import Metrics
from .results import Results
from .results_file import check_results
from .truth import best_of_each_image

MAX_DETS = 300  # per image, over all categories

# The additional fields of LVIS's images and categories; a frequency is "r", "c" or "f".
_FIELDS = {
    "images": ["neg_category_ids", "not_exhaustive_category_ids"],
    "categories": ["frequency"],
}


def check_lvis(coco_gt: COCO) -> None:
    """Raise DataError if the ground truth lacks one of LVIS's fields, ConfigError without hotcoco.

    pycocotools does not have LVIS's rules.
    """
    if not find_spec("hotcoco"):
        raise ConfigError("LVIS's evaluation needs the package hotcoco: pip install hotcoco")
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
    categories = [coco_gt.cats[number] for number in sorted(coco_gt.cats)]
    measures, metrics = Measures(AREA_RANGES, [MAX_DETS], MAX_DETS), {}
    best = results[np.sort(best_of_each_image(results.scores, results.image_ids, MAX_DETS))]
    for iou_type in iou_types:
        areas = (
            best.masks.areas
            if iou_type == "segm" and best.masks is not None
            else (np.empty(0) if best.boxes is None else best.boxes[:, 2:].prod(axis=1))
        )
        counted = best[np.flatnonzero(areas > 0)]  # the package ignores detections without area
        evaluator = run_engine(coco_gt, counted, iou_type, measures, lvis_style=True)
        recall = evaluator.eval["recall"]
        tables = PrecisionRecall(evaluator.eval["precision"][..., 0], recall, measures)
        more = {}
        for letter in "rcf":
            indices = [k for k, row in enumerate(categories) if row["frequency"] == letter]
            more[f"AP{letter}"] = tables.ap(categories=indices)
        more[f"AR@{MAX_DETS}"] = tables.ar()
        names = [row["name"] for row in categories]
        metrics[iou_type] = tables.summarize(names, more, f"@{MAX_DETS}")
    return metrics


@EVALUATORS.register("lvis")
class LvisEvaluator(Evaluator):
    """LVIS AP of boxes and masks: "bbox", "segm"."""

    kind = "bbox"

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        check_lvis(build_coco_gt(dataset, annotations=False))

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        kinds = [kind for kind in predicted_kinds(cfg) if kind != "keypoints"]
        return evaluate_lvis(build_coco_gt(dataset), results, kinds)
