"""Which categories are taken for which, and from which score on detections are worth keeping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import IGNORED, RIGHT, Matched

from .cross_category import Across

OVERLAP = 0.5  # from which a detection and an object are one


@dataclass(frozen=True)
class Threshold:
    """The score from which on precision and recall are best together, and what they are there.

    Attributes:
        score: detections that score less are left out.
        precision: right ones among the detections, 0 to 1.
        recall: found ones among the objects, 0 to 1.
    """

    score: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def best_threshold(matched: Matched) -> Threshold | None:
    """The score with the highest F1 at IoU 0.5 over all categories; None if nothing is found."""
    whole = matched.areas.index("all")
    outcomes = matched.outcomes[whole, 0]
    positives = int((~matched.ignored[whole]).sum())
    counted = outcomes != IGNORED
    scores = matched.pairing.scores[counted]
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], (outcomes[counted] == RIGHT)[order].cumsum()
    if not len(right) or not right[-1] or not positives:
        return None
    # Only after all detections of the same score.
    places = np.flatnonzero(np.diff(scores, append=-np.inf))
    kept = places + 1
    best = int((2 * right[places] / (kept + positives)).argmax())
    hits = int(right[places[best]])
    return Threshold(float(scores[places[best]]), hits / int(kept[best]), hits / positives)


def confusion_matrix(across: Across, min_score: float) -> np.ndarray:
    """How often each category is detected as which.

    Detections and objects that overlap by OVERLAP are made pairs, those that overlap most first,
    whatever their categories. Detections within a crowd are left out.

    Args:
        min_score: detections that score less are left out.

    Returns:
        int64 [K + 1, K + 1]: rows are the objects' categories and last the background, columns
        what they are detected as and last nothing.
    """
    count = len(across.category_ids)
    detections, objects = across.pairing.pairs()
    kept = across.pairing.scores >= min_score
    crowd = across.truth.crowd
    close = kept[detections] & (across.overlaps >= OVERLAP)
    chosen = np.flatnonzero(close & ~crowd[objects])
    chosen = chosen[np.argsort(-across.overlaps[chosen], kind="stable")]
    free = kept.copy()  # detections
    unseen = ~crowd  # objects
    matrix = np.zeros((count + 1, count + 1), np.int64)
    for detection, wanted in zip(
        detections[chosen].tolist(), objects[chosen].tolist(), strict=True
    ):
        if free[detection] and unseen[wanted]:
            free[detection] = unseen[wanted] = False
            matrix[across.labelled[wanted], across.detected[detection]] += 1
    matrix[:count, count] = np.bincount(across.labelled[unseen], minlength=count)
    free[detections[close & crowd[objects]]] = False
    matrix[count, :count] = np.bincount(across.detected[free], minlength=count)
    return matrix
