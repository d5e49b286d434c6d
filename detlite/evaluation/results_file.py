"""Read COCO results, and check that they fit their ground truth."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.annotations.ids import Ids
from detlite.data.annotations.rules import BOX_IN_PIXEL, BOX_OUTSIDE, judge_boxes
from detlite.data.datasets.ground_truth import NOT_EVALUATED
from detlite.files.errors import DataError
from detlite.files.json_files import read_json

from .results import IOU_TYPES, Results, check_masks, first_true, in_range
from .truth import image_sizes, most_overlapped, read_objects

logger = logging.getLogger(__name__)

_MAX_CHECKED = 2000  # highest-scoring boxes that are compared with the objects
_MIN_CHECKED = 3  # fewer prove nothing
_MIN_MATCHED = 0.1  # fraction of the boxes that match an object in usual results
_MATCHED_IOU = 0.5


def read_results(
    source: Results | Path | str | Sequence[Mapping[str, Any]],
    truth: COCO,
    kinds: Sequence[str],
    max_dets: int = 0,
) -> Results:
    """Return the detections in a COCO results file, or in its entries.

    Args:
        source: a file, its entries, or results that were read before.
        truth: the ground truth that `read_coco_gt` returned.
        kinds: the IoU types to read.
        max_dets: warn about images with more detections of a category than this; 0: do not.

    Raises:
        DataError: the file cannot be read, an entry is not in COCO's results format, or the entries
            are not detections in the pixels of these images.
    """
    if isinstance(source, Results):
        check_results(source, truth, kinds)
        return _of_evaluated(source, truth, "the results")
    name = str(source) if isinstance(source, Path | str) else "the results"
    images = [*truth.dataset.get(NOT_EVALUATED, []), *truth.imgs.values()]
    ids = Ids.of_entries(images), Ids.of_entries(truth.cats.values())
    try:
        source = Path(source) if isinstance(source, str) else source
        results = Results.from_coco(source, kinds, *ids)
        check_results(results, truth, kinds)
        _check_values(results)
        results = _of_evaluated(results, truth, name)
        _check_positions(results, truth, name)
    except DataError as error:
        if str(error).startswith(name):
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
    """Compare the highest-scoring boxes with their images and the objects in them.

    DataError if most are not in their images. A warning if hardly any overlaps an object, or if
    those that do have other categories.
    """
    objects = read_objects(truth)
    count = min(int((~objects.crowds).sum()), len(results), _MAX_CHECKED)
    if results.boxes is None or count < _MIN_CHECKED:
        return
    best = np.argsort(-results.scores, kind="stable")[:count]
    boxes, image_ids = results.boxes[best].astype(np.float64), results.image_ids[best]
    sizes = image_sizes(truth, image_ids)
    codes, _, exceed = judge_boxes(boxes, sizes[:, ::-1])
    wrong = (exceed | np.isin(codes, (BOX_IN_PIXEL, BOX_OUTSIDE))) & (sizes > 0).all(axis=1)
    if 2 * wrong.sum() > count:
        n = int(best[wrong].min())
        raise DataError(
            f"result {n}: the bbox {results.boxes[n].tolist()} exceeds its image or is in its "
            f"first pixel, as do {wrong.sum()} of the {count} highest-scoring boxes. COCO's are "
            "[x, y, width, height] in pixels: convert corners, centers or fractions"
        )
    found, ious = most_overlapped(boxes, image_ids, objects, objects.image_ids)
    matched = ious >= _MATCHED_IOU
    if matched.mean() < _MIN_MATCHED:
        logger.warning(
            "%s: only %d of the %d highest-scoring boxes overlap an object of their image by half. "
            "If the model is better than that, these are other images, or boxes that are not "
            "[x, y, width, height] in pixels", name, matched.sum(), count,
        )  # fmt: skip
    predicted, actual = results.category_ids[best][matched], objects.category_ids[found[matched]]
    confused = np.flatnonzero(predicted != actual)
    if len(confused) >= max(_MIN_CHECKED, len(actual) / 2):
        pair = predicted[confused[0]], actual[confused[0]]
        logger.warning(
            "%s: %d of %d boxes on objects have another category, such as %s on %s: check that the "
            "category ids are those of the ground truth", name, len(confused), len(actual),
            *(f"{key} ({truth.cats[key]['name']})" for key in pair),
        )  # fmt: skip
