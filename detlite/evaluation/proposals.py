"""Average recall of class-agnostic boxes, as Detectron measures region proposals.

Each object in turn, best covered first, takes the proposal that covers it most. COCO's own program
gives nearly the same numbers, but takes hours for a thousand boxes an image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from torchvision.ops import box_convert

from ..structures import boxes as box_ops

_LIMITS = (100, 1000)  # the boxes of an image that count, best by score
_AREAS = {"": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}
_THRESHOLDS = np.linspace(0.5, 0.95, 10)


def evaluate_proposals(coco_gt: COCO, results: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Average recall over overlaps of 0.5, 0.55, ..., 0.95, of the best 100 and 1000 boxes.

    Args:
        coco_gt: the ground truth; crowds are left out.
        results: boxes in COCO's results form: image_id, score and bbox (xywh); their category is
            not looked at. May be empty.

    Returns:
        {"AR@100", "ARs@100", "ARm@100", "ARl@100", "AR@1000", ...}, fractions of 1; the letter is
        for small, medium and large objects. None where there is nothing to find.
    """
    boxes = defaultdict(list)
    for result in sorted(results, key=lambda result: -result["score"]):
        boxes[result["image_id"]].append(result["bbox"])
    metrics: dict[str, float | None] = {}
    for limit in _LIMITS:
        areas: list[float] = []
        overlaps: list[float] = []
        for image_id in coco_gt.imgs:
            rows = [row for row in coco_gt.imgToAnns[image_id] if not row.get("iscrowd", 0)]
            areas += [row.get("area", row["bbox"][2] * row["bbox"][3]) for row in rows]
            overlaps += _best_overlaps([row["bbox"] for row in rows], boxes[image_id][:limit])
        area, recalled = np.array(areas), np.array(overlaps)[:, None] >= _THRESHOLDS
        for letter, (low, high) in _AREAS.items():
            counted = recalled[(area >= low) & (area <= high)]
            metrics[f"AR{letter}@{limit}"] = float(counted.mean()) if len(counted) else None
    return metrics


def _best_overlaps(truth: list[list[float]], boxes: list[list[float]]) -> list[float]:
    """The overlap that each of G xywh boxes finds in P others; each of these serves one."""
    corners = (
        box_convert(torch.tensor(rows, dtype=torch.float64).reshape(-1, 4), "xywh", "xyxy")
        for rows in (truth, boxes)
    )
    overlap = box_ops.iou(*corners).numpy()  # (G, P)
    found = np.zeros(len(truth))
    for _ in range(min(overlap.shape)):
        g, p = np.unravel_index(overlap.argmax(), overlap.shape)
        if overlap[g, p] <= 0:
            break
        found[g] = overlap[g, p]
        overlap[g, :] = overlap[:, p] = -1
    return list(found)
