"""Score threshold with the best F1."""

from dataclasses import dataclass

import numpy as np

from .matching import IGNORED, TRUE_POSITIVE, MatchedDetections


@dataclass(frozen=True)
class ScoreThreshold:
    """A score threshold, with the precision and recall of the detections that reach it."""

    score: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def best_threshold(matched: MatchedDetections) -> ScoreThreshold | None:
    """Return the threshold with the highest F1 at IoU 0.5 over all categories.

    None if there are no true positives.
    """
    all_areas = matched.areas.index("all")
    outcomes = matched.outcomes[all_areas, 0]
    positives = int((~matched.ignored[all_areas]).sum())
    counted = outcomes != IGNORED
    scores = matched.pairing.scores[counted]
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], (outcomes[counted] == TRUE_POSITIVE)[order].cumsum()
    if not len(hits) or not hits[-1] or not positives:
        return None
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # the last of each score
    best = last[(2 * hits[last] / (last + 1 + positives)).argmax()]
    true_positives = int(hits[best])
    return ScoreThreshold(
        float(scores[best]), true_positives / int(best + 1), true_positives / positives
    )
