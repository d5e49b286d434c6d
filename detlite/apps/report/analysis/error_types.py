"""Classify the errors of a detector, and compute how much AP correcting each type would gain.

The types and rules are from TIDE (Bolya et al., ECCV 2020, https://arxiv.org/abs/2008.08115).
"""

import numpy as np

from detlite.evaluation.engine import RECALL_THRESHOLDS

from .cross_category import FOREGROUND_IOU, CrossCategoryMatches

BACKGROUND_IOU = 0.1  # highest IoU of a background detection with any object

# All but the last are false positives. The template of reports explains them.
ERROR_TYPES = ("classification", "localisation", "both", "duplicate", "background", "missed")
FALSE_POSITIVE_TYPES = ERROR_TYPES[:-1]
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(5)
TRUE_POSITIVE, IGNORED = -1, -2


class DetectionErrors:
    """The errors among D detections and G objects.

    Attributes:
        matches: the detections and the objects.
        types: int64 [D], an index into FALSE_POSITIVE_TYPES, TRUE_POSITIVE, or IGNORED in a crowd.
        objects: int64 [D], the object of a true positive, duplicate, or error of classification or
            localisation; otherwise -1.
        found_by: int64 [G], the true positive of each object; -1: none.
        missed: bool [G], objects without a true positive or a detection that can be corrected.
        gains: for each of ERROR_TYPES, the increase of AP at FOREGROUND_IOU, 0 to 1, if only this
            type is corrected. For classification and localisation, the best detection of each
            object without a true positive is corrected, and other detections of the type removed.
        ap: AP at FOREGROUND_IOU; None if there are no objects.
    """

    def __init__(self, matches: CrossCategoryMatches) -> None:
        """Classify every detection, and find the missed objects."""
        self.matches = matches
        detections, objects = matches.detections, matches.objects
        same = matches.categories[detections] == matches.object_categories[objects]
        crowd = matches.crowd[objects]
        # Detections, in order of score, take the unmatched object of highest IoU.
        candidates = np.flatnonzero(same & ~crowd & (matches.overlaps >= FOREGROUND_IOU))
        order = np.lexsort((-matches.overlaps[candidates], detections[candidates]))
        matched, self.found_by = matches.assign(candidates[order])
        same_iou, same_object = matches.best(same & ~crowd)
        other_iou, other_object = matches.best(~same & ~crowd)
        found_iou, found_object = matches.best(same & (self.found_by[objects] >= 0))
        any_iou, _ = matches.best(~crowd)
        crowd_iou, _ = matches.best(same & crowd)
        nothing = np.full_like(matched, -1)
        decisions = [  # the first true condition decides about the type and the object
            (matched >= 0, TRUE_POSITIVE, matched),
            (crowd_iou > FOREGROUND_IOU, IGNORED, nothing),
            ((same_iou >= BACKGROUND_IOU) & (same_iou <= FOREGROUND_IOU), LOCALISATION,
             same_object),
            (other_iou >= FOREGROUND_IOU, CLASSIFICATION, other_object),
            (found_iou >= FOREGROUND_IOU, DUPLICATE, found_object),
            (any_iou <= BACKGROUND_IOU, BACKGROUND, nothing),
        ]  # fmt: skip
        conditions, types, objects_of = zip(*decisions, strict=True)
        self.types = np.select(conditions, types, BOTH)
        self.objects = np.select(conditions, objects_of, -1)
        # The best wrong detection of each object without a true positive can be corrected.
        wrong = np.flatnonzero((self.types == CLASSIFICATION) | (self.types == LOCALISATION))
        wrong = wrong[self.found_by[self.objects[wrong]] < 0]
        corrected = wrong[np.unique(self.objects[wrong], return_index=True)[1]]
        self.missed = (self.found_by < 0) & ~matches.crowd
        self.missed[self.objects[corrected]] = False
        self.ap, self.gains = self._gains(corrected)

    def counts(self) -> dict[str, int]:
        """Return the number of errors by type."""
        false_positives = [int((self.types == n).sum()) for n in range(len(FALSE_POSITIVE_TYPES))]
        return dict(zip(ERROR_TYPES, [*false_positives, int(self.missed.sum())], strict=True))

    def _gains(self, corrected: np.ndarray) -> tuple[float | None, dict[str, float]]:
        """Return `ap` and `gains`, given the indices of the detections that can be corrected."""
        matches, objects = self.matches, self.matches.object_categories
        count = len(matches.category_ids)
        positives = np.bincount(objects[~matches.crowd], minlength=count)  # [K]
        if not positives.any():
            return None, dict.fromkeys(ERROR_TYPES, 0.0)

        counted, hits = self.types != IGNORED, self.types == TRUE_POSITIVE
        cases = {"": (counted, hits, matches.categories, positives)}
        for number, kind in enumerate(FALSE_POSITIVE_TYPES):
            fixed = np.zeros_like(hits)
            fixed[corrected[self.types[corrected] == number]] = True
            categories = np.where(fixed, objects[self.objects], matches.categories)
            kept = counted & ((self.types != number) | fixed)
            cases[kind] = kept, hits | fixed, categories, positives
        remaining = positives - np.bincount(objects[self.missed], minlength=count)
        cases["missed"] = counted, hits, matches.categories, remaining
        known = np.flatnonzero(positives)
        aps = {kind: _mean_ap(known, matches.scores, *case) for kind, case in cases.items()}
        before = aps.pop("")
        # As in TIDE: a negative gain is an artifact of the interpolation.
        return before, {kind: max(ap - before, 0.0) for kind, ap in aps.items()}


def _mean_ap(
    known: np.ndarray,
    scores: np.ndarray,
    kept: np.ndarray,
    hits: np.ndarray,
    categories: np.ndarray,
    positives: np.ndarray,
) -> float:
    """Return the mean AP of the `known` categories with objects or detections."""
    values = []
    for k in known:
        detections = np.flatnonzero(kept & (categories == k))
        best_first = detections[np.argsort(-scores[detections], kind="stable")]
        true_positives = hits[best_first].cumsum()
        precision = true_positives / np.arange(1, len(best_first) + 1)
        envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        if positives[k]:
            reached = np.searchsorted(true_positives / positives[k], RECALL_THRESHOLDS)
            values.append(envelope[reached].mean())
        elif len(detections):  # all objects were left out
            values.append(0.0)
    return float(np.mean(values)) if values else 0.0
