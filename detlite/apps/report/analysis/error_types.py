"""Classify the errors of a detector, and compute how much AP correcting each type would gain.

The types and rules are from TIDE (Bolya et al., ECCV 2020, https://arxiv.org/abs/2008.08115).

Shapes: D detections, G objects, P overlapping pairs of a detection and an object of the same image,
K categories.
"""

from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.evaluation.engine import RECALL_THRESHOLDS
from detlite.evaluation.results import Results
from detlite.evaluation.truth import best_of_each_image, numbers_of

FOREGROUND_IOU = 0.5  # lowest IoU of a detection and its object
BACKGROUND_IOU = 0.1  # highest IoU of a background detection with any object

# All but the last are false positives. The template of reports explains them.
ERROR_TYPES = ("classification", "localisation", "both", "duplicate", "background", "missed")
FALSE_POSITIVE_TYPES = ERROR_TYPES[:-1]
CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(5)
CORRECT, IN_CROWD = -1, -2


class CrossCategoryMatches:
    """Detections and objects of a dataset regardless of category, with the overlaps of all pairs.

    Images and categories are numbered by increasing id.

    Attributes:
        index: int64 [D], indices into the results: the highest-scoring detections of each image,
            by image and decreasing score.
        scores: float64 [D].
        images, categories: int64 [D], numbers.
        rows: the annotations of the G objects, by image.
        object_images, object_categories: int64 [G], numbers.
        crowd: bool [G].
        detections, objects: int64 [P].
        overlaps: float64 [P], IoU; for a crowd, the fraction of the detection that is on it.
        image_ids, category_ids: int64, the ids of the numbers.
    """

    def __init__(self, truth: COCO, results: Results, kind: str, max_dets: int) -> None:
        """Compare boxes ("bbox") or masks ("segm") of the best `max_dets` detections of each image.

        The results must have passed `check_results`.
        """
        numbers, categories = numbers_of(truth.imgs), numbers_of(truth.cats)
        self.image_ids, self.category_ids = np.array([*numbers]), np.array([*categories])
        self.rows = sorted(truth.dataset["annotations"], key=lambda row: numbers[row["image_id"]])
        labels = [(numbers[row["image_id"]], categories[row["category_id"]]) for row in self.rows]
        self.object_images, self.object_categories = np.array(labels, np.int64).reshape(-1, 2).T
        self.crowd = np.array([row["iscrowd"] for row in self.rows], bool)
        images = np.searchsorted(self.image_ids, results.image_ids)
        scores = results.scores.astype(np.float64)
        self.index = index = best_of_each_image(scores, images, max_dets)
        self.scores, self.images = scores[index], images[index]
        self.categories = np.searchsorted(self.category_ids, results.category_ids[index])
        bounds = range(len(numbers) + 1)
        starts, object_starts = (
            np.searchsorted(side, bounds).tolist() for side in (self.images, self.object_images)
        )
        pairs = [np.empty((3, 0))]
        masks = [*results.masks.rles()] if kind == "segm" and results.masks is not None else []
        for n in numbers.values():
            first, last = object_starts[n : n + 2]
            found, present = index[starts[n] : starts[n + 1]], self.rows[first:last]
            if not len(found) or not present:
                continue
            shapes: Any
            known: Any
            if kind == "segm":
                shapes, known = [masks[d] for d in found], [truth.annToRLE(row) for row in present]
            else:
                assert results.boxes is not None
                shapes = results.boxes[found].astype(np.float64)
                known = np.array([row["bbox"] for row in present], np.float64)
            overlaps = rle_codec.iou(shapes, known, self.crowd[first:last].astype(int).tolist())
            d, g = np.nonzero(overlaps)
            pairs.append(np.stack([d + starts[n], g + first, overlaps[d, g]]))
        detections, objects, self.overlaps = np.concatenate(pairs, axis=1)
        self.detections, self.objects = detections.astype(np.int64), objects.astype(np.int64)

    def best(self, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest overlap of each detection and its object, float64 and int64 [D].

        Only the pairs `allowed`, bool [P], count. Detections without such a pair have 0 and -1.
        """
        detections, objects = self.detections[allowed], self.objects[allowed]
        overlaps = self.overlaps[allowed]
        order = np.lexsort((-overlaps, detections))
        paired, first = np.unique(detections[order], return_index=True)
        highest = np.zeros(len(self.index))
        best_object = np.full(len(highest), -1)
        highest[paired] = overlaps[order[first]]
        best_object[paired] = objects[order[first]]
        return highest, best_object

    def assign(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Match detections and objects greedily in the order of `pairs`, int64 indices in 0..P-1.

        Returns the object of each detection, int64 [D], and the detection of each object, int64
        [G]; -1: none.
        """
        matched, found_by = np.full(len(self.index), -1), np.full(len(self.rows), -1)
        chosen = zip(self.detections[pairs].tolist(), self.objects[pairs].tolist(), strict=True)
        for d, g in chosen:
            if matched[d] < 0 and found_by[g] < 0:
                matched[d], found_by[g] = g, d
        return matched, found_by


class DetectionErrors:
    """The errors among D detections and G objects.

    Attributes:
        matches: the detections and the objects.
        types: int64 [D], an index into FALSE_POSITIVE_TYPES, CORRECT, or IN_CROWD.
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
            (matched >= 0, CORRECT, matched),
            (crowd_iou > FOREGROUND_IOU, IN_CROWD, nothing),
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

        counted, hits = self.types != IN_CROWD, self.types == CORRECT
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


def confusion_matrix(matches: CrossCategoryMatches, min_score: float) -> np.ndarray:
    """Count how often objects of each category are detected as each category.

    Detections and objects are matched greedily by decreasing IoU, regardless of category.
    Detections below `min_score`, and unmatched ones in a crowd, are ignored.

    Returns:
        int64 [K + 1, K + 1]. Rows are categories of objects, the last row is background; columns
        are categories of detections, the last column is "not detected".
    """
    count = len(matches.category_ids)
    detections, objects = matches.detections, matches.objects
    shown, crowd = matches.scores >= min_score, matches.crowd
    close = shown[detections] & (matches.overlaps >= FOREGROUND_IOU)
    candidates = np.flatnonzero(close & ~crowd[objects])
    best_first = np.argsort(-matches.overlaps[candidates], kind="stable")
    matched, found_by = matches.assign(candidates[best_first])
    matrix = np.zeros((count + 1, count + 1), np.int64)
    hits = matched >= 0
    pairs = matches.object_categories[matched[hits]], matches.categories[hits]
    np.add.at(matrix, pairs, 1)
    missed = matches.object_categories[~crowd & (found_by < 0)]
    matrix[:count, count] = np.bincount(missed, minlength=count)
    wrong = shown & ~hits
    wrong[detections[close & crowd[objects]]] = False
    matrix[count, :count] = np.bincount(matches.categories[wrong], minlength=count)
    return matrix
