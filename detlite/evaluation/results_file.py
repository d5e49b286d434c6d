"""Read COCO results, and check that they fit their ground truth.

The ground truth decides: boxes in another notation match its objects only if they are read in that
notation, and detections with other category ids are on objects of other categories.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.annotations.ids import Ids
from detlite.data.datasets.ground_truth import NOT_EVALUATED
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from detlite.files.reading import read_file

from .results import (
    IOU_TYPES,
    Results,
    check_masks,
    first_true,
    in_range,
    results_from_json,
    to_json,
)
from .truth import image_sizes, most_overlapped, read_objects

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 32
_MAX_CHECKED = 2000  # highest-scoring boxes that are compared with the objects
_MIN_FOUND = 3  # fewer detections prove nothing
_MIN_FRACTION = 0.2  # of the boxes that match an object in another notation only
_CERTAIN = 20  # such boxes, or half of all, prove it; a few match by chance
_MIN_MATCHED = 0.1  # fraction of the boxes that match an object in usual results
_MATCHED_IOU = 0.5
# How boxes [N, 4] may be written, and the conversion to [x, y, width, height].
_NOTATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "[x, y, width, height]": lambda boxes: boxes,
    "corners [x1, y1, x2, y2]": lambda boxes: boxes - boxes[:, [0, 1, 0, 1]] * [0, 0, 1, 1],
    "[center x, center y, width, height]": lambda boxes: (
        boxes - boxes[:, [2, 3, 2, 3]] * [0.5, 0.5, 0, 0]
    ),
}


def read_results(
    source: Results | Path | str | Sequence[Mapping[str, Any]],
    truth: COCO,
    kinds: Sequence[str],
    max_dets: int = 0,
) -> Results:
    """Return the detections in a COCO results file, or in its entries.

    Args:
        source: a file, its entries, or results that were read before.
        truth: the ground truth that `read_truth` returned.
        kinds: the IoU types to read.
        max_dets: warn about images with more detections of a category than this; 0: do not.

    Raises:
        DataError: the file cannot be read, an entry is not in COCO's results format, or the entries
            are not detections in the pixels of these images.
    """
    if isinstance(source, Results):
        check_results(source, truth, kinds)
        return _of_evaluated(source, truth, "the results")
    if isinstance(source, Path | str):
        name, text = str(source), _read_text(Path(source))
    else:
        name, text = "the results", to_json(source)
    try:
        images = [*truth.dataset.get(NOT_EVALUATED, []), *truth.imgs.values()]
        ids = Ids.of_entries(images), Ids.of_entries(truth.cats.values())
        results = results_from_json(text, kinds, *ids)
        check_results(results, truth, kinds)
        _check_values(results)
        results = _of_evaluated(results, truth, name)
        _check_positions(results, truth, name)
    except (json.JSONDecodeError, RecursionError):
        read_json(Path(name))  # explains the problem
        raise
    except DataError as error:
        if str(error).startswith("ground truth"):
            raise
        raise DataError(f"{name}: {error}") from error
    if max_dets:
        _check_limit(results, name, max_dets)
    return results


def _of_evaluated(results: Results, truth: COCO, name: str) -> Results:
    """Return the results of evaluated images; log how many others there are."""
    used = np.isin(results.image_ids, list(truth.imgs))
    if used.all():
        return results
    others = results.image_ids[~used]
    logger.warning(
        "%s: %d results of %d images are not counted, such as image %d: these images are not "
        "evaluated, because the ground truth skips them or lists them twice",
        name, len(others), len(np.unique(others)), others[0],
    )  # fmt: skip
    return results[np.flatnonzero(used)]


def _read_text(file: Path) -> bytes:
    try:
        text = read_file(file, _MAX_BYTES)
        text.decode()
        return text
    except (OSError, UnicodeDecodeError):
        return to_json(read_json(file))  # explains the problem, or reads another encoding


def kinds_of(file: Path | str) -> set[str]:
    """Return the IoU types of the first entry of a results file, and "bbox". Raises DataError."""
    rows = read_json(Path(file))
    first = rows[0] if isinstance(rows, list) and rows else {}
    fields = first if isinstance(first, dict) else {}
    return {"bbox"} | {kind for kind, field in IOU_TYPES.items() if fields.get(field)}


def check_results(results: Results, truth: COCO, kinds: Sequence[str]) -> None:
    """Raise DataError if results lack a field or do not refer to images and categories."""
    fields = {"bbox": results.boxes, "segm": results.masks, "keypoints": results.keypoints}
    for kind in kinds:
        if fields[kind] is None and len(results):
            raise DataError(f"the results have no {IOU_TYPES[kind]!r}, which {kind} needs")
    evaluated = np.isin(results.image_ids, list(truth.imgs))
    others = [image["id"] for image in truth.dataset.get(NOT_EVALUATED, [])]
    if (n := first_true(~(evaluated | np.isin(results.image_ids, others)))) is not None:
        raise DataError(
            f"result {n}: image_id {results.image_ids[n]} is not in the ground truth; are these "
            "the results of another dataset?"
        )
    if (n := first_true(~np.isin(results.category_ids, list(truth.cats)))) is not None:
        ids = ", ".join(map(str, sorted(truth.cats)[:10]))
        more = ", ..." if len(truth.cats) > 10 else ""
        raise DataError(
            f"result {n}: category_id {results.category_ids[n]} is not in the ground truth, whose "
            f"ids are {ids}{more}"
        )
    numbers = {"score": results.scores, "bbox": results.boxes, "keypoints": results.keypoints}
    for field, array in numbers.items():
        if array is not None and (n := first_true(~in_range(array))) is not None:
            raise DataError(f"result {n}: the {field} is {array[n].tolist()}")
    if results.masks is not None and "segm" in kinds:
        chosen = np.flatnonzero(evaluated)
        expected = image_sizes(truth, results.image_ids[chosen])
        sizes = results.masks.sizes[chosen]
        if (k := first_true((sizes != expected).any(axis=1))) is not None:
            raise DataError(
                f"result {chosen[k]}: the mask has the size {sizes[k].tolist()}, but image "
                f"{results.image_ids[chosen[k]]} has {expected[k].tolist()} (height, width)"
            )


def _check_values(results: Results) -> None:
    """Raise DataError if a score, box, keypoint or mask is in another unit or invalid."""
    if (n := first_true((results.scores < 0) | (results.scores > 1))) is not None:
        raise DataError(
            f"result {n}: the score is {results.scores[n]:g}, but scores are from 0 to 1: divide "
            "percentages by 100, or convert logits by a sigmoid"
        )
    boxes, points, masks = results.boxes, results.keypoints, results.masks
    if boxes is not None and (n := first_true(boxes[:, 2:].min(axis=1) < 0)) is not None:
        raise DataError(f"result {n}: the bbox {boxes[n].tolist()} has a negative size")
    if points is not None and points.size and np.abs(points[..., :2]).max() <= 1:
        raise DataError(
            "result 0: the keypoints are fractions of the image size, but COCO's are in pixels: "
            "multiply them by the width and height of their image"
        )
    if masks is not None:
        check_masks(masks)


def _check_limit(results: Results, name: str, max_dets: int) -> None:
    """Warn if images have more detections of a category than are counted."""
    images, image_numbers = np.unique(results.image_ids, return_inverse=True)
    categories, numbers = np.unique(results.category_ids, return_inverse=True)
    keys, counts = np.unique(image_numbers * len(categories) + numbers, return_counts=True)
    if counts.max(initial=0) > max_dets:
        logger.warning(
            "%s: image %d has %d detections of a category, of which the %d highest-scoring are "
            "counted: use --max-detections (max_dets) to count more",
            name, images[keys[counts.argmax()] // len(categories)], counts.max(), max_dets,
        )  # fmt: skip


def _check_positions(results: Results, truth: COCO, name: str) -> None:
    """Compare the highest-scoring boxes with the objects of their images.

    DataError if many match an object in another notation only. A warning if hardly any matches, or
    if those that do have other categories.
    """
    if results.boxes is None:
        return
    objects = read_objects(truth)
    count = min(int((~objects.crowds).sum()), len(results), _MAX_CHECKED)
    if count < _MIN_FOUND:
        return
    best = np.argsort(-results.scores, kind="stable")[:count]
    boxes, image_ids = results.boxes[best].astype(np.float64), results.image_ids[best]
    found, ious = most_overlapped(boxes, image_ids, objects, objects.image_ids)
    matched = ious >= _MATCHED_IOU
    units = {"": boxes}
    if all(image.get("height") and image.get("width") for image in truth.imgs.values()):
        sides = np.tile(image_sizes(truth, image_ids)[:, ::-1], 2)
        units["fractions of the image size, "] = np.where(boxes <= 1.5, boxes * sides, 0)
    others = {}
    for unit, values in units.items():
        for notation, convert in _NOTATIONS.items():
            others[unit + notation] = only = np.zeros(count, bool)
            rest = convert(values)[~matched]
            _, ious = most_overlapped(rest, image_ids[~matched], objects, objects.image_ids)
            only[~matched] = ious >= _MATCHED_IOU
    notation, only = max(others.items(), key=lambda item: item[1].sum())
    if only.sum() >= max(_MIN_FOUND, _MIN_FRACTION * count):
        n = int(best[only].min())
        problem = (
            f"result {n}: the bbox {results.boxes[n].tolist()} is on an object only if it is read "
            f"as {notation}, as are {only.sum()} of the {count} highest-scoring boxes, but COCO's "
            "are [x, y, width, height] in pixels: convert them"
        )
        if only.sum() >= min(_CERTAIN, count / 2):
            raise DataError(problem)
        logger.warning("%s: %s if the model is better than these results", name, problem)
    if matched.mean() < _MIN_MATCHED:
        logger.warning(
            "%s: only %d of the %d highest-scoring boxes overlap an object of their image by half. "
            "If the model is better than that, these are other images, or boxes in other units",
            name, matched.sum(), count,
        )  # fmt: skip
    actual = objects.category_ids[found[matched]]
    _check_categories(results.category_ids[best][matched], actual, truth, name)


def _check_categories(category_ids: np.ndarray, actual: np.ndarray, truth: COCO, name: str) -> None:
    """Warn if detections of most categories are on objects of one other category each."""
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
