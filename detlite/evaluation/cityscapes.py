"""Cityscapes average precision of masks.

The rules are from evalInstanceLevelSemanticLabeling in cityscapesscripts 2.3, without
distances.
D predictions, G instances, P pairs of the same image and category.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.data.annotations.single import read_segmentation
from detlite.data.datasets.cityscapes import CATEGORIES, EVALUATED
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError

from .evaluators import EVALUATORS, Evaluator
from .metrics import Metrics, mean_or_none
from .results import Results
from .results_file import check_results
from .truth import indices_of, read_objects

IOU_THRESHOLDS = np.arange(0.5, 1.0, 0.05)  # the IoU must exceed them
MIN_SIZE = 100  # pixels; smaller instances may be missed
_NO_CATEGORY = np.iinfo(np.int64).min


def evaluate_cityscapes(coco_gt: COCO, results: Results) -> dict[str, Any]:
    """Compute the average precision of masks over the evaluated categories that occur.

    A prediction matches an instance of its category if their IoU exceeds the threshold. The
    highest-scoring match of an instance is a true positive, further ones are false positives. An
    unmatched prediction is a false positive unless a larger fraction of it than the threshold lies
    on void, groups of its category and instances of less than 100 pixels: then it is ignored.
    Groups and such small instances may be missed.

    Args:
        coco_gt: the ground truth made by `read_cityscapes`: groups have `iscrowd`, and images have
            the RLE `void`. Instances should not overlap.
        results: with masks. May be empty.

    Returns:
        {"AP": mean over the IoU thresholds, "AP50": at 0.5, "per_category": {name: AP},
        "per_category_AP50": {name: AP50}} as fractions, None if there are no instances.
    """
    check_void(coco_gt)
    check_results(results, coco_gt, ["segm"])
    comparison = _compare(coco_gt, results)
    evaluated = {CATEGORIES[number] for number in EVALUATED}
    per_category: dict[str, float | None] = {}
    per_category_50: dict[str, float | None] = {}
    for category in coco_gt.dataset["categories"]:
        if (name := category["name"]) in evaluated:
            averages = [
                _average_precision(comparison, category["id"], iou) for iou in IOU_THRESHOLDS
            ]
            per_category[name] = mean_or_none(averages)
            per_category_50[name] = averages[0]
    return {
        "AP": mean_or_none(per_category.values()),
        "AP50": mean_or_none(per_category_50.values()),
        "per_category": per_category,
        "per_category_AP50": per_category_50,
    }


def check_void(coco_gt: COCO) -> None:
    """Raise DataError if an image of the ground truth has no valid `void`."""
    for image in coco_gt.dataset["images"]:
        void = image.get("void")
        problem: str | None = "is missing"
        if isinstance(void, dict):
            size = image["height"], image["width"]
            problem = read_segmentation(void, *size, may_be_empty=True).problem
        if problem is not None:
            raise DataError(
                f"ground truth: image {image['id']}: 'void', the mask of the pixels that "
                f"Cityscapes' evaluation ignores, {problem}; delete the dataset's file in "
                "<DATASETS.ROOT>/converted to convert it again"
            )


@dataclass(frozen=True)
class _Comparison:
    """Predictions, instances, and pairs of both by decreasing score of the prediction."""

    scores: np.ndarray  # [D]
    categories: np.ndarray  # [D], ids of categories; _NO_CATEGORY for empty masks
    ignored: np.ndarray  # [D], the fraction of the prediction that is on ignored regions
    required: np.ndarray  # bool [G], instances that must be found
    instance_categories: np.ndarray  # [G], ids
    predictions: np.ndarray  # [P]
    instances: np.ndarray  # [P]
    iou: np.ndarray  # [P]


def _compare(coco_gt: COCO, results: Results) -> _Comparison:
    annotations, truth = coco_gt.dataset["annotations"], read_objects(coco_gt)
    groups, small = truth.crowds, np.zeros(len(annotations), bool)
    instances, images = indices_of(truth.image_ids), indices_of(results.image_ids)
    none = np.empty(0, np.int64)
    rles = [] if results.masks is None else [*results.masks.rles()]
    ignored, empty = np.zeros(len(results)), np.zeros(len(results), bool)
    pairs: list[np.ndarray] = []
    for image_id, image in coco_gt.imgs.items():
        objects, found = instances.get(image_id, none), images.get(image_id, none)
        masks = [coco_gt.annToRLE(annotations[n]) for n in objects]
        void = coco_gt.annToRLE({"image_id": image_id, "segmentation": image["void"]})
        small[objects] = np.array([rle_codec.area(mask) < MIN_SIZE for mask in masks], bool)
        if not len(found):
            continue
        detected = [rles[n] for n in found]
        empty[found] = [rle_codec.area(mask) == 0 for mask in detected]
        # For a crowd, the overlap is the fraction of the detection that is on it.
        ignored[found] = rle_codec.iou(detected, [void], [1])[:, 0]
        if not masks:
            continue
        same = results.category_ids[found][:, None] == truth.category_ids[objects]
        # Small groups count twice, as in cityscapesscripts.
        weights = groups[objects].astype(float) + small[objects]
        fractions = rle_codec.iou(detected, masks, [1] * len(masks))
        ignored[found] += (fractions * same) @ weights
        iou = rle_codec.iou(detected, masks, [0] * len(masks))
        rows, columns = np.nonzero(same & (iou > 0))
        pairs.append(np.stack([found[rows], objects[columns], iou[rows, columns]]))
    predictions, paired, iou = np.concatenate([np.empty((3, 0)), *pairs], axis=1)
    order = np.argsort(-results.scores[predictions.astype(np.int64)], kind="stable")
    return _Comparison(
        scores=results.scores.astype(np.float64),
        categories=np.where(empty, _NO_CATEGORY, results.category_ids),
        ignored=ignored,
        required=~groups & ~small,
        instance_categories=truth.category_ids,
        predictions=predictions[order].astype(np.int64),
        instances=paired[order].astype(np.int64),
        iou=iou[order],
    )


def _average_precision(comparison: _Comparison, category: int, threshold: float) -> float | None:
    required = comparison.required & (comparison.instance_categories == category)
    positives = int(required.sum())
    if not positives:
        return None
    matches = comparison.iou > threshold  # [P]
    matched = np.zeros(len(comparison.scores), bool)
    matched[comparison.predictions[matches]] = True
    in_category = comparison.categories == category
    unmatched = in_category & ~matched & (comparison.ignored <= threshold)
    matches &= in_category[comparison.predictions] & comparison.required[comparison.instances]
    scores = comparison.scores[comparison.predictions[matches]]
    # The first pair of an instance has the highest score.
    best = np.zeros(len(scores), bool)
    best[np.unique(comparison.instances[matches], return_index=True)[1]] = True
    false_positives = np.append(scores[~best], comparison.scores[unmatched])
    return area_under_curve(scores[best], false_positives, positives)


def area_under_curve(
    true_positives: np.ndarray, false_positives: np.ndarray, positives: int
) -> float:
    """Return the area under precision over recall, linearly interpolated from (0, 1).

    `true_positives` [H] and `false_positives` [F] are scores; there are `positives` instances.
    """
    thresholds = np.unique(np.concatenate([true_positives, false_positives]))[::-1]
    if not thresholds.size:
        return 0.0
    hits, errors = (
        len(scores) - np.searchsorted(np.sort(scores), thresholds)
        for scores in (true_positives, false_positives)
    )  # number of scores at each threshold or above
    precision, recall = hits / (hits + errors), hits / positives
    recall, precision = np.append(0.0, recall), np.append(1.0, precision)
    return float(np.diff(recall) @ (precision[1:] + precision[:-1]) / 2)


@EVALUATORS.register("cityscapes")
class CityscapesEvaluator(Evaluator):
    """Cityscapes AP of masks: "cityscapes"."""

    kind = "segm"

    def check(self, cfg: CfgNode, dataset: CocoDataset) -> None:
        check_void(build_coco_gt(dataset, annotations=False))

    def evaluate(self, cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
        return {"cityscapes": evaluate_cityscapes(build_coco_gt(dataset), results)}
