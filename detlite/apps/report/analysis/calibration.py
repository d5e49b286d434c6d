"""Whether scores are probabilities: of detections with score 0.8, are eight of ten right?

After Guo et al., On calibration of modern neural networks (https://arxiv.org/abs/1706.04599), on
detections as in Küppers et al., Multivariate confidence calibration for object detection
(https://arxiv.org/abs/2004.13546), without the position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import IGNORED, RIGHT, Matched


@dataclass(frozen=True, eq=False)
class Calibration:
    """Detections by score, in N bins of equal width from 0 to 1.

    Attributes:
        counts: int64 [N], how many detections.
        scores: float64 [N], their mean score; NaN in an empty bin.
        precision: float64 [N], the part of them that is right; NaN in an empty bin.
    """

    counts: np.ndarray
    scores: np.ndarray
    precision: np.ndarray

    @property
    def error(self) -> float | None:
        """The expected calibration error (ECE), 0 to 1: how far score and precision differ, in the
        mean over all detections; None without any."""
        filled = self.counts > 0
        if not filled.any():
            return None
        gaps = np.abs(self.scores - self.precision)[filled]
        return float((self.counts[filled] * gaps).sum() / self.counts.sum())

    @property
    def excess(self) -> float | None:
        """By how much scores are higher than precision in the mean, -1 to 1; None without any."""
        filled = self.counts > 0
        if not filled.any():
            return None
        gaps = (self.scores - self.precision)[filled]
        return float((self.counts[filled] * gaps).sum() / self.counts.sum())


def calibrate(matched: Matched, bins: int = 10) -> Calibration:
    """Sorts the detections that count into bins; right are those that are at IoU 0.5."""
    outcomes = matched.outcomes[matched.areas.index("all"), 0]
    counted = outcomes != IGNORED
    scores, right = matched.pairing.scores[counted], outcomes[counted] == RIGHT
    places = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(places, minlength=bins)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.bincount(places, values, minlength=bins)
        return np.divide(total, counts, out=np.full(bins, np.nan), where=counts > 0)

    return Calibration(counts, mean(scores), mean(right))
