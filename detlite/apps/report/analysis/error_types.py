"""Classify the errors of a detector, and compute how much AP correcting each type would gain.

The types and rules are from TIDE (Bolya et al., ECCV 2020, https://arxiv.org/abs/2008.08115).
"""

from typing import Any

import numpy as np

from .cross_category import FOREGROUND_IOU, CrossCategoryMatches

BACKGROUND_IOU = 0.1  # highest IoU of a background detection with any object

# All but the last are false positives. The template of reports explains them.
ERROR_TYPES = ("classification", "localisation", "both", "duplicate", "background", "missed")
_KEYS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")  # of hotcoco's results
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(5)
TRUE_POSITIVE, IGNORED = -1, -2


class DetectionErrors:
    """The errors among D detections and G objects.

    Attributes:
        matches: the detections and the objects.
        types: int64 [D], an index into ERROR_TYPES, TRUE_POSITIVE, or IGNORED in a crowd.
        objects: int64 [D], the object of a true positive, duplicate, or error of classification or
            localisation; otherwise -1.
        found_by: int64 [G], the true positive of each object; -1: none.
        counts: the number of errors of each of ERROR_TYPES. Objects without a true positive are
            missed, unless a detection of them can be corrected.
        gains: for each of ERROR_TYPES, the increase of AP at FOREGROUND_IOU, 0 to 1, if only this
            type is corrected.
        ap: AP at FOREGROUND_IOU.
    """

    def __init__(self, matches: CrossCategoryMatches, evaluator: Any) -> None:
        """Classify every detection.

        Args:
            evaluator: hotcoco's COCOeval of these detections and objects.
        """
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
        found = evaluator.tide_errors(FOREGROUND_IOU, BACKGROUND_IOU)
        self.ap: float = found["ap_base"]
        gains = (found["delta_ap"][key] for key in _KEYS)
        self.gains: dict[str, float] = dict(zip(ERROR_TYPES, gains, strict=True))
        numbers = [*np.bincount(self.types[self.types >= 0], minlength=5), found["counts"]["Miss"]]
        self.counts = dict(zip(ERROR_TYPES, numbers, strict=True))
