"""COCO average precision and recall of boxes, masks and keypoints.

The values equal pycocotools' values (cocodataset.org/#detection-eval), as fractions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.files.errors import DataError

from .matching import (
    IOU_THRESHOLDS,
    MatchedDetections,
    Measures,
    PrecisionRecall,
    accumulate,
    area_ranges,
    best_threshold,
    match,
)
from .metrics import Metrics, settings_problem
from .overlaps import build_pairing, keypoint_overlaps, region_overlaps
from .reading.ground_truth import (
    GroundTruthArrays,
    check_results,
    read_ground_truth,
)
from .results import IOU_TYPES, Results

_MAX_KEYPOINT_DETS = 20
# Of COCO's 17 keypoints.
_SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000


def evaluate_coco(
    coco_gt: COCO | Path | str | dict[str, Any],
    results: Results | Path | str | Sequence[dict[str, Any]],
    iou_types: Sequence[str] = ("bbox", "segm"),
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
    skip_bad: bool = False,
    iou_thresholds: Sequence[float] = (),
    area_limits: Sequence[float] = (),
) -> Metrics:
    """Evaluate `results` on all images of `coco_gt`.

    Args:
        coco_gt: the ground truth, its annotation file, or the content of the file; see
            `files.read_truth` for how its entries are read. docs/targets_and_results.md lists in
            which cases pycocotools reads them otherwise. A `COCO` object is checked, but unchanged.
        results: the detections, their results file, or its entries (`files.read_results`), with the
            fields that `iou_types` need. May be empty.
        iou_types: some of "bbox", "segm" and "keypoints", or one of them.
        max_dets: number of highest-scoring detections per image and category. Keypoints always
            use COCO's 20.
        oks_sigmas: for each keypoint the standard deviation of its annotated position divided by
            the square root of the object's area (cocodataset.org/#keypoints-eval). Empty: COCO's
            values for its 17 keypoints, their mean for other numbers of keypoints.
        skip_bad: ignore unusable annotations of the file instead of raising an error.
        iou_thresholds: increasing IoUs over which AP and AR are averaged. Empty: COCO's, 0.5 to
            0.95 in steps of 0.05. AP50 and AP75 do not depend on them.
        area_limits: the two areas in square pixels at which medium and large objects begin. Empty:
            COCO's, (32 ** 2, 96 ** 2).

    Returns:
        {"bbox": {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR<max_dets>", "ARs",
        "ARm", "ARl", "per_category": {name: AP}}, ...} as fractions, None if there are no such
        objects. Keypoints have no small objects, and AR, AR50 and AR75 instead of AR1 and AR10. If
        there are true positives, "best_f1" contains the "score" threshold with the highest F1 at
        IoU 0.5, and its "precision" and "recall". AP and AR of masks use `Results.mask_scores`.

    Raises:
        DataError: a result or annotation is invalid, or the numbers of keypoints differ.
        ValueError: an argument is invalid.
    """
    iou_types = (iou_types,) if isinstance(iou_types, str) else iou_types
    unknown = [iou_type for iou_type in iou_types if iou_type not in IOU_TYPES]
    if unknown:
        raise ValueError(f"iou_types: unknown {unknown[0]!r}; known: {', '.join(IOU_TYPES)}")
    if max_dets < 1:
        raise ValueError(f"max_dets must be at least 1, got {max_dets}")
    if problem := settings_problem(iou_thresholds, area_limits):
        raise ValueError(problem)
    if not isinstance(coco_gt, COCO) or not isinstance(results, Results):
        from .reading.files import read_results, read_truth  # training evaluates its own results

        coco_gt = read_truth(coco_gt, iou_types, skip_bad)
        results = read_results(results, coco_gt, iou_types, max_dets)
    check_results(results, coco_gt, iou_types)
    names = category_names(coco_gt)
    metrics = {}
    for iou_type in iou_types:
        matched = match_coco(
            coco_gt, results, iou_type, max_dets, oks_sigmas, iou_thresholds, area_limits
        )
        metrics[iou_type] = summarize(accumulate(matched), names, iou_type)
        if best := best_threshold(matched):
            metrics[iou_type]["best_f1"] = asdict(best)
    return metrics


def match_coco(
    coco_gt: COCO,
    results: Results,
    iou_type: str,
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
    iou_thresholds: Sequence[float] = (),
    area_limits: Sequence[float] = (),
) -> MatchedDetections:
    """Match detections to objects. See `evaluate_coco` for arguments and errors."""
    truth, areas = read_ground_truth(coco_gt, iou_type), area_ranges(area_limits)
    averaged = tuple(iou_thresholds) or tuple(IOU_THRESHOLDS.tolist())
    if iou_type == "keypoints":
        del areas["small"]  # COCO has no small objects with keypoints
        measures = Measures(areas, [_MAX_KEYPOINT_DETS], _MAX_KEYPOINT_DETS, averaged)
        return _match_keypoints(results, truth, _sigmas(truth, oks_sigmas), measures)
    limits = sorted({1, 10, max_dets})
    pairing = build_pairing(results, truth, iou_type, limits[-1])
    overlaps, sizes = region_overlaps(results, truth, pairing, iou_type)
    return match(pairing, truth, overlaps, sizes, Measures(areas, limits, max_dets, averaged))


def _match_keypoints(
    results: Results, truth: GroundTruthArrays, sigmas: np.ndarray, measures: Measures
) -> MatchedDetections:
    pairing = build_pairing(results, truth, "keypoints", measures.max_dets)
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
    return match(pairing, truth, overlaps, sizes, measures)


def _sigmas(truth: GroundTruthArrays, oks_sigmas: Sequence[float]) -> np.ndarray:
    """Return the OKS sigmas float64 [N] of the N annotated keypoints, see `evaluate_coco`."""
    assert truth.keypoints is not None
    count = truth.keypoints.shape[1]
    if oks_sigmas and count and len(oks_sigmas) != count:
        raise ValueError(
            f"oks_sigmas has {len(oks_sigmas)} values, but the ground truth has {count} keypoints"
        )
    if oks_sigmas:
        return np.array(oks_sigmas)
    return _SIGMAS if count == len(_SIGMAS) else np.full(count, _SIGMAS.mean())


def summarize(tables: PrecisionRecall, names: Sequence[str], iou_type: str) -> dict[str, Any]:
    """Return the metrics of one IoU type, see `evaluate_coco`."""
    if iou_type == "keypoints":
        recall = {"AR": tables.ar(), "AR50": tables.ar(0.5), "AR75": tables.ar(0.75)}
    else:
        recall = {f"AR{limit}": tables.ar(limit=limit) for limit in tables.measures.limits}
    return tables.summarize(names, recall)


def category_names(coco_gt: COCO) -> list[str]:
    """Return the category names by increasing id; the id is appended to ambiguous names."""
    categories = [coco_gt.cats[number] for number in sorted(coco_gt.cats)]
    names = [str(row["id"] if row.get("name") is None else row["name"]) for row in categories]
    times = Counter(names)
    return [
        name if times[name] == 1 else f"{name} (id {category['id']})"
        for name, category in zip(names, categories, strict=True)
    ]
