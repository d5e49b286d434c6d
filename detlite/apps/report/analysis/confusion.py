"""Confusion matrix of the categories, and the score threshold with the best F1."""

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.matching import IGNORED, TRUE_POSITIVE, MatchedDetections

from .cross_category import CrossCategoryMatches

MIN_IOU = 0.5  # of a detection and its object


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


def confusion_matrix(matches: CrossCategoryMatches, min_score: float) -> np.ndarray:
    """Count how often objects of each category are detected as each category.

    Detections and objects are matched greedily by falling IoU, regardless of category. Unmatched
    detections in a crowd are left out.

    Args:
        matches: the detections and objects.
        min_score: detections with a lower score are left out.

    Returns:
        int64 [K + 1, K + 1]. Rows are categories of objects, the last row is background; columns
        are categories of detections, the last column is "not detected".
    """
    count = len(matches.category_ids)
    detections, objects = matches.pairing.pairs()
    free = matches.pairing.scores >= min_score  # detections
    missed = ~matches.truth.crowd  # objects
    close = free[detections] & (matches.overlaps >= MIN_IOU)
    candidates = np.flatnonzero(close & missed[objects])
    candidates = candidates[np.argsort(-matches.overlaps[candidates], kind="stable")]
    matrix = np.zeros((count + 1, count + 1), np.int64)
    for d, g in zip(detections[candidates].tolist(), objects[candidates].tolist(), strict=True):
        if free[d] and missed[g]:
            free[d] = missed[g] = False
            matrix[matches.object_categories[g], matches.detection_categories[d]] += 1
    matrix[:count, count] = np.bincount(matches.object_categories[missed], minlength=count)
    free[detections[close & matches.truth.crowd[objects]]] = False
    matrix[count, :count] = np.bincount(matches.detection_categories[free], minlength=count)
    return matrix
