"""Match detections with objects of their image regardless of category.

Shapes: D detections, G objects, P overlapping pairs of a detection and an object of the same image,
K categories.
"""

from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.evaluation.results import Results
from detlite.evaluation.truth import numbers_of

FOREGROUND_IOU = 0.5  # lowest IoU of a detection and its object


class CrossCategoryMatches:
    """Detections and objects of a dataset, with the overlaps of all pairs.

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
        order = np.lexsort((-scores, images))
        ranks = np.arange(len(order)) - np.searchsorted(images[order], images[order])
        self.index = index = order[ranks < max_dets]
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
