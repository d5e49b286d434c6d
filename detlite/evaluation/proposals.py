"""Average recall of class-agnostic boxes, as Detectron measures region proposals.

Each object in turn, best covered first, takes the proposal that covers it most. COCO's own program
gives nearly the same numbers, but takes hours for a thousand boxes an image.
"""

from __future__ import annotations

import numpy as np
from pycocotools.coco import COCO

from detlite.data.errors import DataError

from .results import Results

_LIMITS = (100, 1000)  # the boxes of an image that count, best by score
_AREAS = {"": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}
_THRESHOLDS = np.linspace(0.5, 0.95, 10)


def evaluate_proposals(coco_gt: COCO, results: Results) -> dict[str, float | None]:
    """Average recall over overlaps of 0.5, 0.55, ..., 0.95, of the best 100 and 1000 boxes.

    Args:
        coco_gt: the ground truth; crowds are left out.
        results: boxes; their category is not looked at. May be empty.

    Returns:
        {"AR@100", "ARs@100", "ARm@100", "ARl@100", "AR@1000", ...}, fractions of 1; the letter is
        for small, medium and large objects. None where there is nothing to find.

    Raises:
        DataError: the results have no boxes.
    """
    found = results.boxes
    if found is None:
        if len(results):
            raise DataError("the results have no 'bbox', which proposals are measured by")
        found = np.empty((0, 4))
    order = np.lexsort((-results.scores, results.image_ids))
    images = results.image_ids[order]
    metrics: dict[str, float | None] = {}
    areas: list[float] = []
    overlaps: dict[int, list[np.ndarray]] = {limit: [] for limit in _LIMITS}
    for image_id in coco_gt.imgs:
        rows = [row for row in coco_gt.imgToAnns[image_id] if not row.get("iscrowd", 0)]
        areas += [row.get("area", row["bbox"][2] * row["bbox"][3]) for row in rows]
        first, last = np.searchsorted(images, [image_id, image_id + 1])
        boxes = found[order[first : min(last, first + max(_LIMITS))]]
        truth = np.array([row["bbox"] for row in rows], float).reshape(-1, 4)
        table = _overlaps(truth, boxes.astype(float))
        for limit in _LIMITS:
            overlaps[limit].append(_best_overlaps(table[:, :limit].copy()))
    area = np.array(areas)
    for limit in _LIMITS:
        recalled = np.concatenate([np.empty(0), *overlaps[limit]])[:, None] >= _THRESHOLDS
        for letter, (low, high) in _AREAS.items():
            counted = recalled[(area >= low) & (area <= high)]
            metrics[f"AR{letter}@{limit}"] = float(counted.mean()) if len(counted) else None
    return metrics


def _overlaps(truth: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union [G, P] of xywh boxes."""
    low = np.maximum(truth[:, None, :2], boxes[:, :2])
    high = np.minimum((truth[:, :2] + truth[:, 2:])[:, None], boxes[:, :2] + boxes[:, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    areas = (side[:, 2] * side[:, 3] for side in (truth, boxes))
    union = np.add.outer(*areas) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def _best_overlaps(table: np.ndarray) -> np.ndarray:
    """The overlap that each of G boxes finds in P others, of [G, P], which is changed; each of
    these serves one."""
    found = np.zeros(len(table))
    for _ in range(min(table.shape)):
        g, p = np.unravel_index(table.argmax(), table.shape)
        if table[g, p] <= 0:
            break
        found[g] = table[g, p]
        table[g, :] = table[:, p] = -1
    return found
