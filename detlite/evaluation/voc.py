"""Average precision of boxes as PASCAL VOC counts it (its development kit's VOCevaldet.m)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torchvision.ops import box_convert

from ..structures import boxes as box_ops
from .metrics import mean_known

MIN_IOU = 0.5


def evaluate_voc(coco_gt: COCO, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average precision at an overlap of one half, over all categories that occur.

    In each picture a detection belongs to the object of its category that it overlaps most, and
    finds it if it overlaps by `MIN_IOU` and is the first, by score, to do so. Difficult objects,
    `iscrowd` here, need not be found, and what finds them does not count.

    Args:
        coco_gt: the ground truth.
        results: detections in COCO's results form: image_id, category_id, score and bbox (xywh).
            May be empty.

    Returns:
        {"AP50": area under the curve of precision over recall, as since 2010, "AP50_07": the mean
        at recalls of 0, 0.1, ..., 1, as until 2009, "per_category": {name: AP50}}, fractions of 1.
        None where there is nothing to find.
    """
    truth: defaultdict[int, Any] = defaultdict(lambda: defaultdict(list))
    found = defaultdict(list)
    for row in coco_gt.dataset.get("annotations", []):
        truth[row["category_id"]][row["image_id"]].append(row)
    for result in results:
        found[result["category_id"]].append(result)
    areas: dict[str, float | None] = {}
    eleven = []
    for category in coco_gt.dataset["categories"]:
        name, own = category["name"], truth[category["id"]]
        positives = sum(not row.get("iscrowd", 0) for rows in own.values() for row in rows)
        if not positives:
            areas[name] = None
            continue
        hits = _hits(own, found[category["id"]])
        right = np.cumsum(hits)
        recall, precision = right / positives, right / np.arange(1, len(hits) + 1)
        areas[name] = area_under_curve(recall, precision)
        eleven.append(eleven_point_mean(recall, precision))
    return {
        "AP50": mean_known(areas.values()),
        "AP50_07": mean_known(eleven),
        "per_category": areas,
    }


def _hits(truth: dict[int, list[dict[str, Any]]], results: list[dict[str, Any]]) -> np.ndarray:
    """Of the detections of a category that count, by decreasing score: whether each is right."""
    taken: set[int] = set()
    hits = []
    for result in sorted(results, key=lambda result: -result["score"]):
        best = None
        if rows := truth.get(result["image_id"]):
            boxes = torch.tensor([row["bbox"] for row in (result, *rows)], dtype=torch.float64)
            boxes = box_convert(boxes, "xywh", "xyxy")
            overlap = box_ops.iou(boxes[:1], boxes[1:])[0]
            if overlap.max() >= MIN_IOU:
                best = rows[int(overlap.argmax())]
        if best is None:
            hits.append(False)
        elif not best.get("iscrowd", 0):
            hits.append(best["id"] not in taken)
            taken.add(best["id"])
    return np.array(hits, dtype=bool)


def area_under_curve(recall: np.ndarray, precision: np.ndarray) -> float:
    """The area under the best precision at each recall or a higher one, [D] each."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def eleven_point_mean(recall: np.ndarray, precision: np.ndarray) -> float:
    """The mean of the best precision at recalls of at least 0, 0.1, ..., 1, [D] each."""
    # As tenths, so that a recall of 3 of 10 reaches 0.3.
    reached = [precision[np.round(recall * 10, 9) >= tenth] for tenth in range(11)]
    return float(np.mean([part.max(initial=0.0) for part in reached]))
