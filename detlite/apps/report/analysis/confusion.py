"""Confusion matrix of the categories."""

import numpy as np

from .cross_category import CrossCategoryMatches

MIN_IOU = 0.5  # of a detection and its object


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
