"""Check that results have the units and ids of their ground truth.

The ground truth decides: boxes in another notation match its objects only if they are read in that
notation, and detections with other category ids are on objects of other categories.

N detections, the highest-scoring ones.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from detlite import ops
from detlite.evaluation.overlaps import count_intersections
from detlite.evaluation.results import Results, first_true
from detlite.files.errors import DataError
from detlite.structures.masks.rle import EncodedMasks

from .ground_truth import GroundTruthArrays, Truth, image_sizes, read_ground_truth

logger = logging.getLogger(__name__)

_MAX_CHECKED = 2000  # detections that are compared with the objects
_MIN_FOUND = 3  # fewer detections prove nothing
_MIN_FRACTION = 0.2  # of the detections that match an object in another notation only
_CERTAIN = 20  # such detections, or half of all, prove it; a few match by chance
_MIN_MATCHED = 0.1  # fraction of the detections that match an object in usual results
_MATCHED_IOU = 0.5
_ROUNDING = 0.01  # by which scores may exceed 0 to 1
# How many units are the side of an image; None: one for each pixel.
_UNITS = {"": None, "fractions of the image size, ": 1, "thousandths of the image size, ": 1000}
# How boxes [N, 4] may be written, and the conversion to [x, y, width, height].
_NOTATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "[x, y, width, height]": lambda boxes: boxes,
    "corners [x1, y1, x2, y2]": lambda boxes: boxes - boxes[:, [0, 1, 0, 1]] * [0, 0, 1, 1],
    "[center x, center y, width, height]": lambda boxes: (
        boxes - boxes[:, [2, 3, 2, 3]] * [0.5, 0.5, 0, 0]
    ),
    "[y, x, height, width]": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "corners [y1, x1, y2, x2]": lambda boxes: (
        boxes[:, [1, 0, 3, 2]] - boxes[:, [1, 0, 1, 0]] * [0, 0, 1, 1]
    ),
}


def check_plausible(results: Results, truth: Truth, name: str, max_dets: int) -> Results:
    """Check units, ids and masks, and return the results with scores from 0 to 1.

    Args:
        results: detections whose ids are in the ground truth.
        truth: the ground truth.
        name: the results in messages.
        max_dets: warn about images with more detections of a category; 0: do not.

    Raises:
        DataError: the results are in other units, or a box or mask is invalid.
    """
    results = _check_scores(results, name)
    if (boxes := results.boxes) is not None:
        if (n := first_true(boxes[:, 2:].min(axis=1) < 0)) is not None:
            raise DataError(f"result {n}: the bbox {boxes[n].tolist()} has a negative size")
        _check_positions(results, truth, name)
    points = results.keypoints
    if points is not None and points.size and np.abs(points[..., :2]).max() <= 1:
        raise DataError(
            "the keypoints are fractions of the image size, but COCO's are in pixels: multiply "
            "them by the width and height of their image"
        )
    if results.masks is not None:
        nothing = EncodedMasks.from_rles([])
        every = np.arange(len(results))
        _, areas, _ = count_intersections(
            results.masks, every, nothing, np.zeros((len(results), 2), np.int64)
        )
        if (n := first_true(areas < 0)) is not None:
            raise DataError(f"result {n}: the run lengths of its mask do not cover its image")
    if max_dets:
        keys = np.stack([results.image_ids, results.category_ids], axis=1)
        pairs, counts = np.unique(keys, axis=0, return_counts=True)
        if counts.max(initial=0) > max_dets:
            logger.warning(
                "%s: image %d has %d detections of a category, of which the %d highest-scoring are "
                "counted: use --max-detections (max_dets) to count more",
                name, pairs[counts.argmax()][0], counts.max(), max_dets,
            )  # fmt: skip
    return results


def _check_scores(results: Results, name: str) -> Results:
    """Return the results with scores from 0 to 1; DataError if they are in another unit."""
    low, high = results.scores.min(initial=0), results.scores.max(initial=0)
    is_percent = 2 < high <= 100
    if low < -_ROUNDING or (high > 1 + _ROUNDING and not is_percent):
        n = int(results.scores.argmin() if low < -_ROUNDING else results.scores.argmax())
        raise DataError(
            f"result {n}: the score is {results.scores[n]:g}, but scores are from 0 to 1, or in "
            "percent: divide them by their maximum, or convert logits by a sigmoid"
        )
    if is_percent:
        logger.warning("%s: the scores are up to %g and are read as percent", name, high)
        return replace(results, scores=results.scores / 100)
    return replace(results, scores=results.scores.clip(0, 1)) if low < 0 or high > 1 else results


def _check_positions(results: Results, truth: Truth, name: str) -> None:
    """Compare the highest-scoring boxes with the objects of their images.

    DataError if many match an object in another notation only. A warning if a few do, if none
    matches, or if those that do have other categories.
    """
    objects = read_ground_truth(truth, "bbox")
    count = min(int((~objects.crowd).sum()), len(results), _MAX_CHECKED)
    if count < _MIN_FOUND:
        return
    assert results.boxes is not None
    best = np.argsort(-results.scores, kind="stable")[:count]
    boxes = results.boxes[best].astype(np.float64)
    image_ids, category_ids = results.image_ids[best], results.category_ids[best]
    _check_repeats(np.column_stack([image_ids, category_ids, boxes]), name)
    found = _matched_objects(boxes, image_ids, objects)
    matched = found >= 0
    sides = np.ones((count, 1))
    if all(image.get("height") and image.get("width") for image in truth.imgs.values()):
        sides = np.tile(image_sizes(truth, image_ids)[:, ::-1], 2)
    others = {}
    for unit, scale in _UNITS.items():
        fits = boxes.max(axis=1) <= (1.5 * scale if scale else np.inf)
        pixels = boxes * sides / scale if scale else boxes
        for notation, convert in _NOTATIONS.items():
            read = _matched_objects(convert(pixels), image_ids, objects) >= 0
            others[unit + notation] = int((read & fits & ~matched).sum())
    most = max(others, key=lambda notation: others[notation])
    if others[most] >= max(_MIN_FOUND, _MIN_FRACTION * count):
        problem = (
            f"{others[most]} of the {count} highest-scoring boxes are on an object only if they "
            f"are read as {most}, but COCO's are [x, y, width, height] in pixels: convert them"
        )
        if others[most] >= min(_CERTAIN, count / 2):
            raise DataError(problem)
        logger.warning("%s: %s if the model is better than these results", name, problem)
    if matched.mean() < _MIN_MATCHED:
        logger.warning(
            "%s: only %d of the %d highest-scoring boxes overlap an object of their image by half. "
            "If the model is better than that, these are other images, or boxes in other units",
            name, matched.sum(), count,
        )  # fmt: skip
    _check_categories(category_ids[matched], objects, found[matched], truth, name)


def _check_repeats(rows: np.ndarray, name: str) -> None:
    """Warn if many of rows [N, 6] of image, category and box are equal."""
    repeats = len(rows) - len(np.unique(rows, axis=0))
    if repeats >= max(1, _MIN_FRACTION * len(rows)):
        logger.warning(
            "%s: %d of the %d highest-scoring detections have the image, category and box of "
            "another one, and count as wrong: remove the repeats", name, repeats, len(rows),
        )  # fmt: skip


def _matched_objects(
    boxes: np.ndarray, image_ids: np.ndarray, truth: GroundTruthArrays
) -> np.ndarray:
    """Return the object, of any category, that each box [N, 4] matches, int64 [N]; -1: none."""
    order = np.argsort(truth.images, kind="stable")
    images = np.searchsorted(truth.image_ids, image_ids)
    ranges = np.searchsorted(truth.images[order], np.stack([images, images + 1], axis=1))
    arrays = boxes, truth.boxes[order], truth.crowd[order], ranges
    overlaps = ops.box_overlaps(*map(torch.from_numpy, arrays)).numpy()
    found = np.full(len(boxes), -1)
    lengths = ranges[:, 1] - ranges[:, 0]
    starts = lengths.cumsum() - lengths
    for n in np.flatnonzero(lengths).tolist():
        part = overlaps[starts[n] : starts[n] + lengths[n]]
        if part.max() >= _MATCHED_IOU:
            found[n] = order[ranges[n, 0] + part.argmax()]
    return found


def _check_categories(
    category_ids: np.ndarray, objects: GroundTruthArrays, found: np.ndarray, truth: Truth, name: str
) -> None:
    """Warn if detections of most categories are on objects of one other category each."""
    actual = objects.category_ids[objects.categories[found]]
    confused, measured = [], 0
    for number in np.unique(category_ids).tolist():
        ids, counts = np.unique(actual[category_ids == number], return_counts=True)
        if counts.sum() < _MIN_FOUND:
            continue
        measured += 1
        usual = int(ids[counts.argmax()])
        if usual != number and counts.max() > 0.8 * counts.sum():
            names = [f"{n} ({truth.cats[n].get('name')})" for n in (number, usual)]
            confused.append(f"{names[0]} are on objects of {names[1]}")
    if confused and 2 * len(confused) >= measured:
        logger.warning(
            "%s: detections of category %s: check that the category ids are those of the ground "
            "truth", name, "; of ".join(confused[:3]),
        )  # fmt: skip
