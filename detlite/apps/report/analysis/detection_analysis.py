"""Run all analyses of a set of detections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.evaluation.coco import (
    PrecisionRecall,
    ScoreThreshold,
    category_names,
    match_coco,
    summarize,
)
from detlite.evaluation.engine import IGNORED, TRUE_POSITIVE
from detlite.evaluation.results import Results
from detlite.evaluation.results_file import check_results

from .bootstrap import BootstrapMetrics, matched_detections, resample
from .cross_category import confusion_matrix, match_across_categories
from .error_types import DetectionErrors, classify_errors


@dataclass(frozen=True, eq=False)
class Calibration:
    """Detections by score, in N bins of equal width from 0 to 1.

    After Guo et al., "On calibration of modern neural networks" (https://arxiv.org/abs/1706.04599),
    applied to detections as in Küppers et al., "Multivariate confidence calibration for object
    detection" (https://arxiv.org/abs/2004.13546), without the box position.

    Attributes:
        counts: int64 [N], number of detections.
        scores: float64 [N], mean score; NaN in an empty bin.
        precision: float64 [N], fraction of true positives; NaN in an empty bin.
    """

    counts: np.ndarray
    scores: np.ndarray
    precision: np.ndarray

    @property
    def error(self) -> float | None:
        """The expected calibration error (ECE), 0 to 1; None without detections."""
        return self._mean(np.abs(self.scores - self.precision))

    @property
    def excess(self) -> float | None:
        """Mean score minus precision, -1 to 1; None without detections."""
        return self._mean(self.scores - self.precision)

    @property
    def wrong(self) -> int:
        """The number of false positives."""
        filled = self.counts > 0
        return int((self.counts * (1 - self.precision))[filled].sum().round())

    def _mean(self, gaps: np.ndarray) -> float | None:
        filled = self.counts > 0
        if not filled.any():
            return None
        return float(np.average(gaps[filled], weights=self.counts[filled]))


@dataclass(frozen=True, eq=False)
class DetectionAnalysis:
    """Analysis of boxes ("bbox"), masks ("segm") or keypoints ("keypoints").

    Attributes:
        kind: the IoU type.
        names: names of the K categories.
        objects: int64 [K], number of objects.
        metrics: result of `evaluate_coco`, computed from `precision_recall`.
        bootstrap: the metrics of bootstrap samples of the images.
        calibration: precision by score, at IoU 0.5.
        threshold: the score threshold with the best F1; None without true positives.
        unlabeled: number of images without any object or crowd.
        labeled_ap: AP on the other images.
        errors, confusion: the types of errors, and the confusion matrix at the threshold; None for
            keypoints.
    """

    kind: str
    names: list[str]
    objects: np.ndarray
    metrics: dict[str, Any]
    precision_recall: PrecisionRecall
    bootstrap: BootstrapMetrics
    calibration: Calibration
    threshold: ScoreThreshold | None
    unlabeled: int
    labeled_ap: float | None
    errors: DetectionErrors | None
    confusion: np.ndarray | None


def analyze_detections(
    coco_gt: COCO,
    results: Results,
    kind: str,
    samples: np.ndarray,
    max_dets: int = 100,
    *settings: Sequence[float],
) -> DetectionAnalysis:
    """Compute all analyses of one IoU type, with bootstrap samples from `sample_images`.

    See `match_coco` for the other arguments and the exceptions.
    """
    check_results(results, coco_gt, [kind])
    found = match_coco(coco_gt, results, kind, max_dets, *settings)
    names, threshold = category_names(coco_gt), found.threshold
    metrics = summarize(found.tables, names, kind)
    matched = matched_detections(found, coco_gt, results, kind)
    measures = found.tables.measures
    counted = matched.counted[measures.area("all")]
    outcomes = matched.outcomes[measures.area("all"), measures.at(0.5)]
    known = outcomes != IGNORED
    labeled = np.bincount(matched.object_images, minlength=matched.shape[0]) > 0
    labeled_ap = metrics["AP"]
    if not labeled.all():
        (labeled_ap,) = resample(matched, labeled[None].astype(np.uint8)).metrics()["AP"].tolist()
    errors = confusion = None
    if kind != "keypoints":
        matches = match_across_categories(coco_gt, results, kind, max_dets)
        errors = classify_errors(matches)
        confusion = confusion_matrix(matches, threshold.score if threshold else 0.0)
    return DetectionAnalysis(
        kind=kind,
        names=names,
        objects=np.bincount(matched.object_categories[counted], minlength=len(names)),
        metrics=metrics,
        precision_recall=found.tables,
        bootstrap=resample(matched, samples),
        calibration=calibrate(matched.scores[known], outcomes[known] == TRUE_POSITIVE),
        threshold=threshold,
        unlabeled=int((~labeled).sum()),
        labeled_ap=labeled_ap,
        errors=errors,
        confusion=confusion,
    )


def calibrate(scores: np.ndarray, correct: np.ndarray, bins: int = 10) -> Calibration:
    """Sort detections into bins by score, given float64 [D] and bool [D], true positives."""
    bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    totals = np.stack([np.bincount(bin_of, values, minlength=bins) for values in (scores, correct)])
    means = np.divide(totals, counts, out=np.full((2, bins), np.nan), where=counts > 0)
    return Calibration(counts, *means)
