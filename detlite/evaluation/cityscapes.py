"""Average precision of masks as Cityscapes counts it.

The rules are those of cityscapesscripts 2.3, evalInstanceLevelSemanticLabeling, without distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.datasets.cityscapes import CATEGORIES, EVALUATED
from detlite.data.errors import DataError
from detlite.data.index.annotation_checks import rle_problem
from detlite.structures.masks.rle import EncodedMasks

from .ground_truth import Truth, check_results, read_truth
from .metrics import mean_known
from .overlaps import count_shared, mask_intersections, pair
from .results import Results

OVERLAPS = np.arange(0.5, 1.0, 0.05)  # to be exceeded
MIN_SIZE = 100  # pixels; smaller instances need not be found


def evaluate_cityscapes(coco_gt: COCO, results: Results) -> dict[str, Any]:
    """Average precision of masks, over the evaluated categories that occur.

    A prediction finds the instance of its category whose intersection over union with it exceeds
    an overlap of 0.5, 0.55, ..., 0.95. Of several that find the same, the best by score is right
    and the others are wrong, and so is one that finds none; unless more of it than the overlap is
    on void, groups of its category and instances of less than 100 pixels: then it does not count.
    Groups and such small instances need not be found.

    Args:
        coco_gt: the ground truth as `read_cityscapes` makes it: groups have `iscrowd`, and images
            the RLE `void`. Each pixel should belong to one instance only, as in form "mask".
        results: the detections, with masks. May be empty.

    Returns:
        {"AP": mean over the overlaps, "AP50": at the first, "per_category": {name: AP},
        "per_category_AP50": {name: AP50}}, fractions of 1. None where there is nothing to find.

    Raises:
        DataError: an image has no sound `void`, or a result no sound mask, or it names an unknown
            image or category.
    """
    check_void(coco_gt)
    check_results(results, coco_gt, ["segm"])
    truth = read_truth(coco_gt, "segm")
    compared = _compare(coco_gt, results, truth)
    names = [CATEGORIES[number] for number in EVALUATED]
    per_category: dict[str, float | None] = {}
    per_category_50: dict[str, float | None] = {}
    for category in coco_gt.dataset["categories"]:
        name = category["name"]
        if name not in names:
            continue
        own = int(np.searchsorted(truth.category_ids, category["id"]))
        averages = [_average_precision(compared, own, overlap) for overlap in OVERLAPS]
        per_category[name] = mean_known(averages)
        per_category_50[name] = averages[0]
    return {
        "AP": mean_known(per_category.values()),
        "AP50": mean_known(per_category_50.values()),
        "per_category": per_category,
        "per_category_AP50": per_category_50,
    }


def check_void(coco_gt: COCO) -> None:
    """Raises DataError if an image of the ground truth has no sound `void`."""
    for image in coco_gt.dataset["images"]:
        void = image.get("void")
        problem: str | None = "is missing"
        if isinstance(void, dict):
            problem = rle_problem(void, image["height"], image["width"], may_be_empty=True)
        if problem is not None:
            raise DataError(
                f"ground truth: image {image['id']}: 'void', which pixels Cityscapes' evaluation "
                f"leaves out, {problem}; delete the data set's file in <DATASETS.ROOT>/converted, "
                "and it is made anew"
            )


@dataclass(frozen=True)
class _Compared:
    """D predictions, by falling score within their image and category; G instances; and the P pairs
    of them that share image and category."""

    scores: np.ndarray  # [D]
    categories: np.ndarray  # [D], places in Truth.category_ids; -1 of what has no pixels
    ignored: np.ndarray  # [D], the part of the prediction where it may be
    wanted: np.ndarray  # bool [G], whether the instance is to be found
    wanted_categories: np.ndarray  # [G]
    predictions: np.ndarray  # [P]
    instances: np.ndarray  # [P]
    iou: np.ndarray  # [P]


def _compare(coco_gt: COCO, results: Results, truth: Truth) -> _Compared:
    pairing = pair(results, truth)
    shared, areas, sizes = mask_intersections(results, truth, pairing)
    predictions, instances = pairing.pairs()
    small = sizes < MIN_SIZE
    # Small groups count as both, as they do in cityscapesscripts.
    times = truth.crowd[instances].astype(float) + small[instances]
    ignored = np.bincount(predictions, shared * times, minlength=len(areas)).astype(float)
    images = [coco_gt.imgs[number] for number in truth.image_ids.tolist()]
    void = EncodedMasks.from_rles(
        [coco_gt.annToRLE({"image_id": image["id"], "segmentation": image["void"]})
         for image in images]
    )  # fmt: skip
    if results.masks is not None:
        first = pairing.keys % max(len(images), 1)
        ranges = np.stack([first, first + 1], axis=1)
        ignored += count_shared(results.masks, pairing.index, void, ranges)[0]
    there = areas > 0
    return _Compared(
        scores=pairing.scores,
        categories=np.where(there, pairing.categories, -1),
        ignored=np.divide(ignored, areas, out=np.zeros_like(areas), where=there),
        wanted=~truth.crowd & ~small,
        wanted_categories=truth.categories,
        predictions=predictions,
        instances=instances,
        iou=shared / (areas[predictions] + sizes[instances] - shared),
    )


def _average_precision(compared: _Compared, category: int, overlap: float) -> float | None:
    positives = int((compared.wanted & (compared.wanted_categories == category)).sum())
    if not positives:
        return None
    finds = compared.iou > overlap  # [P]
    finding = np.zeros(len(compared.scores), bool)
    finding[compared.predictions[finds]] = True
    own = compared.categories == category
    alarms = compared.scores[own & ~finding & (compared.ignored <= overlap)]
    finds &= own[compared.predictions] & compared.wanted[compared.instances]
    scores = compared.scores[compared.predictions[finds]]
    # The first pair of an instance is that of the highest score.
    best = np.zeros(len(scores), bool)
    best[np.unique(compared.instances[finds], return_index=True)[1]] = True
    return area_under_curve(scores[best], np.append(scores[~best], alarms), positives)


def area_under_curve(right: np.ndarray, wrong: np.ndarray, positives: int) -> float:
    """The area under precision over recall, from (0, 1) by straight lines from score to score.

    Args:
        right, wrong: the scores of right and of wrong predictions, [R] and [W].
        positives: how many there are to find, at least R and 1.
    """
    scores = np.unique(np.concatenate([right, wrong]))[::-1]
    if not scores.size:
        return 0.0
    hits, alarms = (
        len(part) - np.searchsorted(np.sort(part), scores) for part in (right, wrong)
    )  # [S] with at least that score
    precision, recall = hits / (hits + alarms), hits / positives
    recall, precision = np.append(0.0, recall), np.append(1.0, precision)
    return float(np.diff(recall) @ (precision[1:] + precision[:-1]) / 2)
