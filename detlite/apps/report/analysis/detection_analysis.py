"""Run all analyses of a set of detections."""

from collections.abc import Sequence

import numpy as np
from pycocotools.coco import COCO

from detlite.evaluation.coco import category_names, match_coco, summarize
from detlite.evaluation.engine import IGNORED, TRUE_POSITIVE
from detlite.evaluation.results import Results
from detlite.evaluation.results_file import check_results

from .bootstrap import BootstrapMetrics, MatchedDetections
from .error_types import CrossCategoryMatches, DetectionErrors


class Calibration:
    """Detections by score, in N bins of equal width from 0 to 1.

    After Guo et al., "On calibration of modern neural networks" (https://arxiv.org/abs/1706.04599),
    applied to detections as in Küppers et al., "Multivariate confidence calibration for object
    detection" (https://arxiv.org/abs/2004.13546), without the box position.

    Attributes:
        counts: int64 [N], number of detections.
        scores: float64 [N], mean score; NaN in an empty bin.
        precision: float64 [N], fraction of true positives; NaN in an empty bin.
        error: the expected calibration error (ECE), 0 to 1; None without detections.
        excess: mean score minus precision, -1 to 1; None without detections.
        wrong: number of false positives.
    """

    def __init__(self, scores: np.ndarray, correct: np.ndarray, bins: int = 10) -> None:
        """Sort detections into bins by score, given float64 [D] and bool [D], true positives."""
        bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
        self.counts = counts = np.bincount(bin_of, minlength=bins)
        sums = np.stack([np.bincount(bin_of, x, minlength=bins) for x in (scores, correct)])
        means = np.divide(sums, counts, out=np.full((2, bins), np.nan), where=counts > 0)
        self.scores, self.precision = means
        gaps, total = sums[0] - sums[1], max(len(scores), 1)
        self.error = float(np.abs(gaps).sum() / total) if len(scores) else None
        self.excess = float(gaps.sum() / total) if len(scores) else None
        self.wrong = int((~correct).sum())


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
        errors: the types of errors; None for keypoints.
    """

    def __init__(
        self,
        coco_gt: COCO,
        results: Results,
        kind: str,
        samples: np.ndarray,
        max_dets: int = 100,
        *settings: Sequence[float],
    ) -> None:
        """Compute all analyses of one IoU type, with bootstrap samples from `sample_images`.

        See `match_coco` for the other arguments and the exceptions.
        """
        check_results(results, coco_gt, [kind])
        found = match_coco(coco_gt, results, kind, max_dets, *settings)
        self.kind, self.names, self.threshold = kind, category_names(coco_gt), found.threshold
        self.precision_recall, measures = found.tables, found.tables.measures
        self.metrics = summarize(found.tables, self.names, kind)
        self.errors = None
        if kind != "keypoints":
            matches = CrossCategoryMatches(coco_gt, results, kind, max_dets)
            self.errors = DetectionErrors(matches)
        matched = MatchedDetections(found, coco_gt, results, kind)
        counted = matched.object_categories[matched.counted[measures.area("all")]]
        self.objects = np.bincount(counted, minlength=len(self.names))
        outcomes = matched.outcomes[measures.area("all"), measures.at(0.5)]
        known = outcomes != IGNORED
        self.calibration = Calibration(matched.scores[known], outcomes[known] == TRUE_POSITIVE)
        self.bootstrap = BootstrapMetrics(matched, samples)
        self.unlabeled = len(coco_gt.imgs) - len(np.unique(matched.object_images))
