"""Average precision of masks as Cityscapes counts it.

The rules are those of cityscapesscripts 2.3, evalInstanceLevelSemanticLabeling, without distances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from ..data.cityscapes import CATEGORIES, EVALUATED
from ..data.errors import DataError
from ..data.validation import rle_problem
from ..structures.masks import RLE
from .metrics import mean_known
from .results import check_results

OVERLAPS = np.arange(0.5, 1.0, 0.05)  # to be exceeded
MIN_SIZE = 100  # pixels; smaller instances need not be found


def evaluate_cityscapes(coco_gt: COCO, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average precision of masks, over the evaluated categories that occur.

    A prediction finds the instance of its category whose intersection over union with it exceeds
    an overlap of 0.5, 0.55, ..., 0.95. Of several that find the same, the best by score is right
    and the others are wrong, and so is one that finds none; unless more of it than the overlap is
    on void, groups of its category and instances of less than 100 pixels: then it does not count.
    Groups and such small instances need not be found.

    Args:
        coco_gt: the ground truth as `read_cityscapes` makes it: groups have `iscrowd`, and images
            the RLE `void`. Each pixel should belong to one instance only, as in form "mask".
        results: detections in COCO's results form: image_id, category_id, score and segmentation
            (compressed RLE). May be empty.

    Returns:
        {"AP": mean over the overlaps, "AP50": at the first, "per_category": {name: AP},
        "per_category_AP50": {name: AP50}}, fractions of 1. None where there is nothing to find.

    Raises:
        DataError: an image has no sound `void`, or a result lacks a field or names an unknown
            image or category.
    """
    check_void(coco_gt)
    check_results(results, coco_gt, "segm")
    found, truth = defaultdict(list), defaultdict(list)
    for result in results:
        found[result["image_id"], result["category_id"]].append(result)
    for row in coco_gt.dataset["annotations"]:
        truth[row["image_id"], row["category_id"]].append(row)
    names = [CATEGORIES[number] for number in EVALUATED]
    per_category: dict[str, float | None] = {}
    per_category_50: dict[str, float | None] = {}
    for category in coco_gt.dataset["categories"]:
        name = category["name"]
        if name not in names:
            continue
        pictures = []
        for image in coco_gt.dataset["images"]:
            key = image["id"], category["id"]
            pictures.append(_compare(coco_gt, image, found[key], truth[key]))
        averages = [_average_precision(pictures, overlap) for overlap in OVERLAPS]
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
class _Picture:
    """P predictions and G instances of one category in one image."""

    scores: np.ndarray  # [P]
    iou: np.ndarray  # [P, G]
    ignored: np.ndarray  # [P], the part of the prediction where it may be
    counted: np.ndarray  # bool [G], whether the instance is to be found


def _compare(
    coco_gt: COCO, image: dict[str, Any], results: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> _Picture:
    results = [result for result in results if rle_codec.area(result["segmentation"])]
    masks = [result["segmentation"] for result in results]
    areas = rle_codec.area(masks).astype(np.float64)  # [P]
    void = coco_gt.annToRLE({"image_id": image["id"], "segmentation": image["void"]})
    instances = [coco_gt.annToRLE(row) for row in rows]
    sizes = rle_codec.area(instances).astype(np.float64)  # [G]
    shared = _intersections(masks, areas, instances)  # [P, G]
    groups = np.array([row.get("iscrowd", 0) for row in rows], dtype=bool)  # [G]
    small = sizes < MIN_SIZE
    # Small groups count as both, as they do in cityscapesscripts.
    ignored = shared[:, groups].sum(axis=1) + shared[:, small].sum(axis=1)
    ignored += _intersections(masks, areas, [void])[:, 0]
    return _Picture(
        scores=np.array([result["score"] for result in results], dtype=np.float64),
        iou=shared / (areas[:, None] + sizes - shared),
        ignored=ignored / areas,
        counted=~groups & ~small,
    )


def _intersections(masks: list[RLE], areas: np.ndarray, others: list[RLE]) -> np.ndarray:
    """Pixels in common, [P, G], of P masks with their `areas` [P] and G others."""
    if not masks or not others:
        return np.zeros((len(masks), len(others)))
    # Over crowds pycocotools divides by the mask's own area.
    return np.rint(rle_codec.iou(masks, others, [1] * len(others)) * areas[:, None])


def _average_precision(pictures: list[_Picture], overlap: float) -> float | None:
    right: list[np.ndarray] = [np.empty(0)]  # scores of the predictions that count
    wrong: list[np.ndarray] = [np.empty(0)]
    positives = 0
    for picture in pictures:
        finds = picture.iou > overlap  # [P, G]
        for column in finds[:, picture.counted].T:
            scores = np.sort(picture.scores[column])
            right.append(scores[-1:])
            wrong.append(scores[:-1])
        wrong.append(picture.scores[~finds.any(axis=1) & (picture.ignored <= overlap)])
        positives += int(picture.counted.sum())
    if not positives:
        return None
    return area_under_curve(np.concatenate(right), np.concatenate(wrong), positives)


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
