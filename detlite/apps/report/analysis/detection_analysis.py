"""Everything that is worth knowing of detections beside their ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pycocotools.coco import COCO

from detlite.evaluation.coco import Metrics, category_names, match_coco, summarize
from detlite.evaluation.ground_truth import check_results
from detlite.evaluation.matching import Scored, score
from detlite.evaluation.results import Results

from .bootstrap import Resampled, resample
from .calibration import Calibration, calibrate
from .confusion import Threshold, best_threshold, confusion_matrix
from .cross_category import Across, compare_across
from .error_types import Errors, find_errors


@dataclass(frozen=True, eq=False)
class Analysis:
    """Detections of one kind: boxes ("bbox"), masks ("segm") or keypoints.

    Attributes:
        names: of the K categories.
        objects: int64 [K], how many there are to find.
        metrics: as `evaluate_coco` gives them.
        scored: precision and recall behind them.
        resampled: the metrics of draws of images.
        calibration: how scores and precision agree.
        threshold: the score at which precision and recall are best; None if nothing is found.
        errors, confusion: the kinds of mistakes, and the matrix at the threshold; None of
            keypoints, for which neither is defined.
    """

    kind: str
    names: list[str]
    objects: np.ndarray
    metrics: Metrics
    scored: Scored
    resampled: Resampled
    calibration: Calibration
    threshold: Threshold | None
    errors: Errors | None
    confusion: np.ndarray | None


def analyse(
    coco_gt: COCO,
    results: Results,
    kind: str,
    draws: np.ndarray,
    max_dets: int = 100,
    oks_sigmas: Sequence[float] = (),
) -> Analysis:
    """Measures results in every way.

    Args:
        draws: of the images, see `draw_images`.
        coco_gt, results, max_dets, oks_sigmas: see `evaluate_coco`, and for its errors.
    """
    check_results(results, coco_gt, [kind])
    matched = match_coco(coco_gt, results, kind, max_dets, oks_sigmas)
    scored, names = score(matched), category_names(coco_gt)
    counted = ~matched.ignored[matched.areas.index("all")]
    threshold = best_threshold(matched)
    errors = confusion = None
    if kind != "keypoints":
        across: Across = compare_across(coco_gt, results, kind, max_dets)
        errors = find_errors(across)
        confusion = confusion_matrix(across, threshold.score if threshold else 0.0)
    return Analysis(
        kind=kind,
        names=names,
        objects=np.bincount(matched.truth.categories[counted], minlength=len(names)),
        metrics=summarize(scored, names, kind),
        scored=scored,
        resampled=resample(matched, draws),
        calibration=calibrate(matched),
        threshold=threshold,
        errors=errors,
        confusion=confusion,
    )
