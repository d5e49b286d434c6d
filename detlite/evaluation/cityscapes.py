"""Cityscapes average precision of masks.

The rules are from evalInstanceLevelSemanticLabeling in cityscapesscripts 2.3, without
distances.
D predictions, G instances, P pairs of the same image and category.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from yacs.config import CfgNode

from detlite.data import CocoDataset
from detlite.data.annotations.single import rle_problem
from detlite.data.datasets.cityscapes import CATEGORIES, EVALUATED
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.files.errors import DataError
from detlite.structures.masks.rle import EncodedMasks

from .evaluators import EVALUATORS, Evaluator
from .metrics import Metrics, mean_or_none
from .overlaps import build_pairing, count_intersections, mask_intersections
from .reading.ground_truth import check_results, read_ground_truth
from .results import Results

IOU_THRESHOLDS = np.arange(0.5, 1.0, 0.05)  # the IoU must exceed them
MIN_SIZE = 100  # pixels; smaller instances may be missed


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
    category_ids = sorted(coco_gt.cats)
    for category in coco_gt.dataset["categories"]:
        if (name := category["name"]) in evaluated:
            k = category_ids.index(category["id"])
            averages = [_average_precision(comparison, k, iou) for iou in IOU_THRESHOLDS]
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
            problem = rle_problem(void, image["height"], image["width"], may_be_empty=True)
        if problem is not None:
            raise DataError(
                f"ground truth: image {image['id']}: 'void', the mask of the pixels that "
                f"Cityscapes' evaluation ignores, {problem}; delete the dataset's file in "
                "<DATASETS.ROOT>/converted to convert it again"
            )


@dataclass(frozen=True)
class _Comparison:
    """Predictions (by decreasing score in each image and category), instances, and their pairs."""

    scores: np.ndarray  # [D]
    categories: np.ndarray  # [D], indices of categories; -1 for empty masks
    ignored: np.ndarray  # [D], the fraction of the prediction that is on ignored regions
    required: np.ndarray  # bool [G], instances that must be found
    instance_categories: np.ndarray  # [G]
    predictions: np.ndarray  # [P]
    instances: np.ndarray  # [P]
    iou: np.ndarray  # [P]


def _compare(coco_gt: COCO, results: Results) -> _Comparison:
    truth = read_ground_truth(coco_gt, "segm")
    pairing = build_pairing(results, truth, "segm")
    shared, areas, sizes = mask_intersections(results, truth, pairing)
    predictions, instances = pairing.pairs()
    small = sizes < MIN_SIZE
    # Small groups count twice, as in cityscapesscripts.
    weights = truth.crowd[instances].astype(float) + small[instances]
    ignored = np.bincount(predictions, shared * weights, minlength=len(areas)).astype(float)
    if results.masks is not None:
        images = [coco_gt.imgs[number] for number in truth.image_ids.tolist()]
        void = EncodedMasks.from_rles([
            coco_gt.annToRLE({"image_id": image["id"], "segmentation": image["void"]})
            for image in images
        ])  # fmt: skip
        first = pairing.keys % max(len(images), 1)
        ranges = np.stack([first, first + 1], axis=1)
        ignored += count_intersections(results.masks, pairing.index, void, ranges)[0]
    nonempty = areas > 0
    return _Comparison(
        scores=pairing.ranking,
        categories=np.where(nonempty, pairing.categories, -1),
        ignored=np.divide(ignored, areas, out=np.zeros_like(areas), where=nonempty),
        required=~truth.crowd & ~small,
        instance_categories=truth.categories,
        predictions=predictions,
        instances=instances,
        iou=shared / (areas[predictions] + sizes[instances] - shared),
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
