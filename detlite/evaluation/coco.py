"""COCO average precision and recall, for boxes, masks and keypoints.

The numbers are those of pycocotools and cocodataset.org/#detection-eval, as fractions, for any
number of detections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.errors import DataError

from .ground_truth import Truth, check_results, read_truth
from .matching import AREAS, Matched, Scored, match, score
from .overlaps import keypoint_overlaps, pair, region_overlaps
from .results import IOU_TYPES, Results

Metrics = dict[str, Any]

_MOST_KEYPOINTS = 20
# Of COCO's 17 keypoints, in thousandths.
_SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000


def evaluate_coco(
    coco_gt: COCO,
    results: Results,
    iou_types: Sequence[str] = ("bbox", "segm"),
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
) -> dict[str, Metrics]:
    """Scores `results` against `coco_gt`, over all of its images.

    Args:
        coco_gt: the ground truth; it is not changed, and may lack info, area and iscrowd.
        results: the detections, with what `iou_types` compare; `Results.from_coco` makes them of a
            results file. May be empty.
        iou_types: which of "bbox", "segm" and "keypoints".
        max_dets: the detections of one image and category that count, best first. Keypoints
            always take COCO's 20.
        oks_sigmas: how far each keypoint may be off, as a part of the object's size: the
            standard deviation of its place over the square root of the area, see
            cocodataset.org/#keypoints-eval. Empty: COCO's own for its 17 keypoints; for others, of
            which nothing is known, the mean of COCO's.

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR<max_dets>", "ARs",
        "ARm", "ARl", "per_category": {name: AP}}, ...}, fractions of 1. None where the ground
        truth holds nothing to find, as when no object is small. Keypoints have no small objects,
        and AR, AR50 and AR75 instead of AR by number.

    Raises:
        DataError: a result or annotation lacks a field, names an unknown image or category, or
            has a mask that is none of its image, or there are other numbers of keypoints.
        ValueError: an unknown IoU type, max_dets below 1, or another number of oks_sigmas than
            of keypoints.
    """
    unknown = [iou_type for iou_type in iou_types if iou_type not in IOU_TYPES]
    if unknown:
        raise ValueError(f"iou_types: unknown {unknown[0]!r}; known: {', '.join(IOU_TYPES)}")
    if max_dets < 1:
        raise ValueError(f"max_dets must be at least 1, got {max_dets}")
    check_results(results, coco_gt, iou_types)
    return {
        iou_type: summarize(
            score(match_coco(coco_gt, results, iou_type, max_dets, oks_sigmas)),
            category_names(coco_gt),
            iou_type,
        )
        for iou_type in iou_types
    }


def match_coco(
    coco_gt: COCO,
    results: Results,
    iou_type: str,
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
) -> Matched:
    """Which detections found which objects; arguments and errors are those of `evaluate_coco`."""
    truth = read_truth(coco_gt, iou_type)
    if iou_type == "keypoints":
        return _match_keypoints(results, truth, _sigmas(truth, oks_sigmas))
    limits = sorted({1, 10, max_dets})
    pairing = pair(results, truth, limits[-1])
    overlaps, sizes = region_overlaps(results, truth, pairing, iou_type)
    return match(pairing, truth, overlaps, sizes, tuple(AREAS), limits, max_dets)


def _match_keypoints(results: Results, truth: Truth, sigmas: np.ndarray) -> Matched:
    pairing = pair(results, truth, _MOST_KEYPOINTS)
    overlaps, sizes = np.empty(0), np.empty(0)
    if len(results):
        assert results.keypoints is not None
        keypoints = results.keypoints[pairing.index].astype(np.float64)
        if len(truth) and keypoints.shape[1] != len(sigmas):
            raise DataError(
                f"the results have {keypoints.shape[1]} keypoints, but the ground truth has "
                f"{len(sigmas)}"
            )
        overlaps = keypoint_overlaps(keypoints, truth, pairing, sigmas)
        sizes = np.ptp(keypoints[:, :, :2], axis=1).prod(axis=1)
    areas = ("all", "medium", "large")  # small objects have no keypoints
    return match(pairing, truth, overlaps, sizes, areas, [_MOST_KEYPOINTS], _MOST_KEYPOINTS)


def _sigmas(truth: Truth, given: Sequence[float]) -> np.ndarray:
    """float64 [P] for the P keypoints of the annotations, see `evaluate_coco`."""
    assert truth.keypoints is not None
    count = truth.keypoints.shape[1]
    if given and count and len(given) != count:
        raise ValueError(
            f"oks_sigmas has {len(given)} values, but the ground truth has {count} keypoints"
        )
    if given:
        return np.array(given)
    return _SIGMAS if count == len(_SIGMAS) else np.full(count, _SIGMAS.mean())


def summarize(found: Scored, names: Sequence[str], iou_type: str) -> Metrics:
    """What `evaluate_coco` returns for one of `iou_types`, with the categories' names."""
    letters = {area[0]: area for area in found.areas if area != "all"}  # s, m, l
    metrics: Metrics = {"AP": found.ap(), "AP50": found.ap(0.5), "AP75": found.ap(0.75)}
    metrics |= {f"AP{letter}": found.ap(area=area) for letter, area in letters.items()}
    if iou_type == "keypoints":
        metrics |= {"AR": found.ar(), "AR50": found.ar(0.5), "AR75": found.ar(0.75)}
    else:
        metrics |= {f"AR{limit}": found.ar(limit=limit) for limit in found.limits}
    metrics |= {f"AR{letter}": found.ar(area=area) for letter, area in letters.items()}
    metrics["per_category"] = {name: found.ap(categories=k) for k, name in enumerate(names)}
    return metrics


def category_names(coco_gt: COCO) -> list[str]:
    """The categories' names by increasing id; names given twice have the id behind them."""
    categories = [coco_gt.cats[number] for number in sorted(coco_gt.cats)]
    names = [str(category.get("name", category["id"])) for category in categories]
    times = Counter(names)
    return [
        name if times[name] == 1 else f"{name} (id {category['id']})"
        for name, category in zip(names, categories, strict=True)
    ]
