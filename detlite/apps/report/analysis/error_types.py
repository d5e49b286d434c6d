"""Classify the errors of a detector, and compute how much AP correcting each type would gain.

The types and rules are from TIDE (Bolya et al., ECCV 2020, https://arxiv.org/abs/2008.08115).
"""

from dataclasses import dataclass

import numpy as np

from detlite.evaluation.engine import RECALL_THRESHOLDS

from .cross_category import FOREGROUND_IOU, CrossCategoryMatches

BACKGROUND_IOU = 0.1  # highest IoU of a background detection with any object

# Meaning of each type of error, and what to do about it. All but the last are false positives.
ERROR_TYPES = {
    "classification": (
        "right place, wrong category",
        "Look at the confusion matrix below. Check the labels of categories that are confused, add "
        "images of them, or merge categories that nobody can distinguish.",
    ),
    "localisation": (
        "right category, but the IoU is only 10 to 50 %",
        "Check that labels outline objects tightly (detlite check). Train longer, or on larger "
        "images (INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST).",
    ),
    "both": (
        "wrong category, and the IoU is only 10 to 50 %",
        "Fix the two types above first; these errors usually disappear with them.",
    ),
    "duplicate": (
        "another detection with a higher score already matches the object",
        "Lower MODEL.ROI_HEADS.NMS, the IoU above which one of two detections is dropped.",
    ),
    "background": (
        "no label there",
        "Look at the false positives below. If they show objects, add the missing labels. "
        "Otherwise train longer, and add images of what they show.",
    ),
    "missed": (
        "no detection is close to the object",
        "Look at the missed objects below, and at detlite browse. If they are small, raise "
        "INPUT.MIN_SIZE_TRAIN and INPUT.MIN_SIZE_TEST, or lower MODEL.RPN.ANCHOR_SIZES. If they "
        "are rare, add images of them.",
    ),
}
FALSE_POSITIVE_TYPES = tuple(ERROR_TYPES)[:-1]
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(5)
TRUE_POSITIVE, IGNORED = -1, -2


@dataclass(frozen=True, eq=False)
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

    matches: CrossCategoryMatches
    types: np.ndarray
    objects: np.ndarray
    found_by: np.ndarray
    missed: np.ndarray
    gains: dict[str, float]
    ap: float | None

    def counts(self) -> dict[str, int]:
        """Return the number of errors by type."""
        counts = {kind: int((self.types == n).sum()) for n, kind in enumerate(FALSE_POSITIVE_TYPES)}
        return counts | {"missed": int(self.missed.sum())}


def classify_errors(matches: CrossCategoryMatches) -> DetectionErrors:
    """Classify every detection, and find the missed objects."""
    detections, objects = matches.detections, matches.objects
    same = matches.categories[detections] == matches.object_categories[objects]
    crowd = matches.crowd[objects]
    # Detections, in order of score, take the unmatched object of highest IoU.
    candidates = np.flatnonzero(same & ~crowd & (matches.overlaps >= FOREGROUND_IOU))
    order = np.lexsort((-matches.overlaps[candidates], detections[candidates]))
    matched, found_by = matches.assign(candidates[order])
    same_iou, same_object = matches.best(same & ~crowd)
    other_iou, other_object = matches.best(~same & ~crowd)
    found_iou, found_object = matches.best(same & (found_by[objects] >= 0))
    any_iou, _ = matches.best(~crowd)
    crowd_iou, _ = matches.best(same & crowd)
    conditions = [  # the first true condition decides
        matched >= 0,
        crowd_iou > FOREGROUND_IOU,
        (same_iou >= BACKGROUND_IOU) & (same_iou <= FOREGROUND_IOU),
        other_iou >= FOREGROUND_IOU,
        found_iou >= FOREGROUND_IOU,
        any_iou <= BACKGROUND_IOU,
    ]
    types = np.select(
        conditions,
        [TRUE_POSITIVE, IGNORED, LOCALISATION, CLASSIFICATION, DUPLICATE, BACKGROUND],
        BOTH,
    )
    object_of = np.select(
        [types == kind for kind in (TRUE_POSITIVE, LOCALISATION, CLASSIFICATION, DUPLICATE)],
        [matched, same_object, other_object, found_object],
        -1,
    )
    # The best wrong detection of each object without a true positive can be corrected.
    wrong = np.flatnonzero((types == CLASSIFICATION) | (types == LOCALISATION))
    wrong = wrong[found_by[object_of[wrong]] < 0]
    corrected = wrong[np.unique(object_of[wrong], return_index=True)[1]]
    missed = (found_by < 0) & ~matches.crowd
    missed[object_of[corrected]] = False
    ap, gains = _gains(matches, types, object_of, corrected, missed)
    return DetectionErrors(matches, types, object_of, found_by, missed, gains, ap)


def _gains(
    matches: CrossCategoryMatches,
    types: np.ndarray,
    object_of: np.ndarray,
    corrected: np.ndarray,
    missed: np.ndarray,
) -> tuple[float | None, dict[str, float]]:
    objects = matches.object_categories
    count = len(matches.category_ids)
    positives = np.bincount(objects[~matches.crowd], minlength=count)  # [K]
    if not positives.any():
        return None, dict.fromkeys(ERROR_TYPES, 0.0)

    def ap(
        kept: np.ndarray, hits: np.ndarray, categories: np.ndarray, remaining: np.ndarray
    ) -> float:
        tables = matches.scores[kept], hits[kept], categories[kept]
        return _mean_ap(*tables, remaining, known=positives > 0)

    counted, hits = types != IGNORED, types == TRUE_POSITIVE
    before = ap(counted, hits, matches.categories, positives)
    after = {}
    for number, kind in enumerate(FALSE_POSITIVE_TYPES):
        fixed = np.zeros_like(hits)
        fixed[corrected[types[corrected] == number]] = True
        categories = np.where(fixed, objects[object_of], matches.categories)
        kept = counted & ((types != number) | fixed)
        after[kind] = ap(kept, hits | fixed, categories, positives)
    remaining = positives - np.bincount(objects[missed], minlength=count)
    after["missed"] = ap(counted, hits, matches.categories, remaining)
    # As in TIDE: a negative gain is an artifact of the interpolation.
    return before, {kind: max(value - before, 0.0) for kind, value in after.items()}


def _mean_ap(
    scores: np.ndarray,
    hits: np.ndarray,
    categories: np.ndarray,
    positives: np.ndarray,
    known: np.ndarray,
) -> float:
    """Return the mean AP of the categories in `known`, bool [K], with objects or detections."""
    values = []
    for k in np.flatnonzero(known):
        detections = np.flatnonzero(categories == k)
        if not positives[k]:  # all objects were left out
            values += [0.0] * bool(len(detections))
            continue
        best_first = detections[np.argsort(-scores[detections], kind="stable")]
        true_positives = hits[best_first].cumsum()
        precision = true_positives / np.arange(1, len(best_first) + 1)
        envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        reached = np.searchsorted(true_positives / positives[k], RECALL_THRESHOLDS)
        values.append(envelope[reached].mean())
    return float(np.mean(values)) if values else 0.0
