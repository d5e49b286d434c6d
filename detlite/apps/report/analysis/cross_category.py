"""Match detections with objects of their image regardless of category.

Shapes: D detections, G objects, P overlapping pairs of a detection and an object of the same image,
K categories.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite.evaluation.engine import numbers_of
from detlite.evaluation.results import Results

FOREGROUND_IOU = 0.5  # lowest IoU of a detection and its object


@dataclass(frozen=True, eq=False)
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

    index: np.ndarray
    scores: np.ndarray
    images: np.ndarray
    categories: np.ndarray
    rows: list[dict[str, Any]]
    object_images: np.ndarray
    object_categories: np.ndarray
    crowd: np.ndarray
    detections: np.ndarray
    objects: np.ndarray
    overlaps: np.ndarray
    image_ids: np.ndarray
    category_ids: np.ndarray

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


def match_across_categories(
    truth: COCO, results: Results, kind: str, max_dets: int
) -> CrossCategoryMatches:
    """Compare boxes ("bbox") or masks ("segm") of the best `max_dets` detections of each image.

    The results must have passed `check_results`.
    """
    numbers, categories = numbers_of(truth.imgs), numbers_of(truth.cats)
    rows = sorted(truth.dataset["annotations"], key=lambda row: numbers[row["image_id"]])
    object_images = np.array([numbers[row["image_id"]] for row in rows], np.int64)
    images = np.searchsorted([*numbers], results.image_ids)
    scores = results.scores.astype(np.float64)
    order = np.lexsort((-scores, images))
    ranks = np.arange(len(order)) - np.searchsorted(images[order], images[order])
    index = order[ranks < max_dets]
    bounds = range(len(numbers) + 1)
    starts, object_starts = (
        np.searchsorted(side, bounds).tolist() for side in (images[index], object_images)
    )
    pairs = [np.empty((3, 0))]
    masks = [*results.masks.rles()] if kind == "segm" and results.masks is not None else []
    for n in numbers.values():
        first, last = object_starts[n : n + 2]
        found, present = index[starts[n] : starts[n + 1]], rows[first:last]
        if not len(found) or not present:
            continue
        crowd = [int(row.get("iscrowd") or 0) for row in present]
        if kind == "segm":
            known = [truth.annToRLE(row) for row in present]
            overlaps = rle_codec.iou([masks[d] for d in found], known, crowd)
        else:
            assert results.boxes is not None
            boxes = np.array([row["bbox"] for row in present], np.float64)
            overlaps = rle_codec.iou(results.boxes[found].astype(np.float64), boxes, crowd)
        d, g = np.nonzero(overlaps)
        pairs.append(np.stack([d + starts[n], g + first, overlaps[d, g]]))
    detections, objects, overlaps = np.concatenate(pairs, axis=1)
    return CrossCategoryMatches(
        index=index,
        scores=scores[index],
        images=images[index],
        categories=np.searchsorted([*categories], results.category_ids[index]),
        rows=rows,
        object_images=object_images,
        object_categories=np.array([categories[row["category_id"]] for row in rows], np.int64),
        crowd=np.array([row.get("iscrowd") or 0 for row in rows], bool),
        detections=detections.astype(np.int64),
        objects=objects.astype(np.int64),
        overlaps=overlaps,
        image_ids=np.array([*numbers]),
        category_ids=np.array([*categories]),
    )


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
