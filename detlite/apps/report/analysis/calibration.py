"""Calibration: compare scores with the precision of the detections that have them.

After Guo et al., "On calibration of modern neural networks" (https://arxiv.org/abs/1706.04599),
applied to detections as in Küppers et al., "Multivariate confidence calibration for object
detection" (https://arxiv.org/abs/2004.13546), without the position.
"""

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import IGNORED, TRUE_POSITIVE, MatchedDetections


@dataclass(frozen=True, eq=False)
class Calibration:
    """Detections by score, in N bins of equal width from 0 to 1.

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
        return self._weighted_mean(np.abs(self.scores - self.precision))

    @property
    def excess(self) -> float | None:
        """Mean score minus precision, -1 to 1; None without detections."""
        return self._weighted_mean(self.scores - self.precision)

    def _weighted_mean(self, gaps: np.ndarray) -> float | None:
        filled = self.counts > 0
        if not filled.any():
            return None
        return float((self.counts[filled] * gaps[filled]).sum() / self.counts.sum())


def calibrate(matched: MatchedDetections, bins: int = 10) -> Calibration:
    """Sort the counted detections into bins; true positives are those at IoU 0.5."""
    outcomes = matched.outcomes[matched.areas.index("all"), 0]
    counted = outcomes != IGNORED
    scores, hits = matched.pairing.scores[counted], outcomes[counted] == TRUE_POSITIVE
    bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(bin_of, minlength=bins)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.bincount(bin_of, values, minlength=bins)
        return np.divide(total, counts, out=np.full(bins, np.nan), where=counts > 0)

    return Calibration(counts, mean(scores), mean(hits))
