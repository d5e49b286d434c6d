"""Read ground truth and detections from COCO files or from memory, and check that they fit.

Reports, `evaluate_coco` and comparisons of other frameworks' detections read with these functions.
"""

import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO

from detlite import ops
from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.coco_masks import rle_problem
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.data.datasets.options import DatasetOptions
from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import read_json

from .columns import Columns
from .ground_truth import GroundTruthFile, bad_polygons, check_results, image_sizes
from .results import IOU_TYPES, Results

logger = logging.getLogger(__name__)

Truth: TypeAlias = COCO | GroundTruthFile
_MIN_MASKS = 0.5  # fraction of detections with a mask from which masks are measured
_MIN_OUTSIDE = 0.1  # fraction of boxes beyond their image from which they may be corners


def read_truth(
    source: Truth | Path | str | dict[str, Any],
    kinds: Sequence[str] = ("bbox", "segm"),
    skip_bad: bool = False,
) -> Truth:
    """Return the ground truth in a COCO annotation file, or in its content.

    Complete files are read by a kernel. Others are read like datasets: ids and numbers may be text,
    missing annotation ids, boxes and areas are computed, and unusable objects are errors.

    Args:
        source: a file, its content, or a ground truth that was read before.
        kinds: the IoU types to measure; "segm" and "keypoints" need masks and keypoints.
        skip_bad: ignore unusable annotations instead of raising an error.

    Raises:
        DataError: the file cannot be read, or has an unusable annotation.
    """
    if isinstance(source, COCO | GroundTruthFile):
        return source
    if isinstance(source, dict):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "annotations.json"
            file.write_text(json.dumps(source))
            return read_truth(file, kinds, skip_bad)
    file = Path(source)
    columns, content = read_columns(file) or (None, {})
    if columns is not None and _is_complete(columns, content):
        images, categories = (
            {row["id"]: row for row in content[key]} for key in ("images", "categories")
        )
        return GroundTruthFile(content, images, categories, columns)
    options = DatasetOptions(
        masks="segm" in kinds, keypoints="keypoints" in kinds, skip_bad=skip_bad, check_images=False
    )
    dataset = CocoDataset(file, file.parent, options)
    for finding in dataset.findings:
        logger.warning("%s: %s", file, finding)
    return build_coco_gt(dataset)


def _is_complete(columns: Columns, content: Any) -> bool:
    """Return True if the entries need neither checks nor values that are filled in."""
    for key, references in zip(("images", "categories"), columns.integers.T[:2], strict=False):
        rows = content.get(key) if isinstance(content, dict) else None
        ids: list[Any]
        ids = [row.get("id") if isinstance(row, dict) else None for row in rows or [None]]
        if len(set(ids)) < len(ids) or any(type(n) is not int or abs(n) >= 2**63 for n in ids):
            return False
        if not np.isin(references, ids).all():
            return False
    required = ("id", "image_id", "category_id", "area", "bbox")
    numbers = bool(np.isfinite(columns.numbers).all() and (columns.numbers[:, 1] >= 0).all())
    valid = numbers and not bad_polygons(columns).any()
    return valid and all(columns.has(field).all() for field in required)


def read_results(
    source: Results | Path | str | Sequence[dict[str, Any]],
    truth: Truth,
    kinds: Sequence[str] = (),
    max_dets: int = 0,
) -> Results:
    """Return the detections in a COCO results file, or in its entries.

    Text that names an image or a category of the ground truth is read as its id. Boxes that are
    missing in some entries are computed from the masks. If only some entries have a mask, the
    others have empty ones. Scores from 0 to 100 are divided by 100.

    Args:
        source: a file, its entries, or results that were read before.
        truth: the ground truth that `read_truth` returned.
        kinds: the required IoU types; empty: boxes, and masks and keypoints if the file has them.
        max_dets: warn about images with more detections of a category than this; 0: do not.

    Raises:
        DataError: the file cannot be read, an entry is invalid, or the entries are not detections
            in the pixels of these images.
    """
    if isinstance(source, Results):
        check_results(source, truth, kinds)
        return source
    name = "the results"
    entries: Columns | list[dict[str, Any]]
    if isinstance(source, Path | str):
        name = str(source)
        entries = _read_entries(Path(source))
    else:
        entries = [dict(row) for row in source]
    try:
        kinds = sorted(_available(entries, kinds))
        if isinstance(entries, list):
            _resolve_ids(entries, truth)
            _fill_masks(entries, truth, kinds, name)
        results = _convert(entries, kinds)
        check_results(results, truth, kinds)
        return _check_plausible(results, truth, name, max_dets)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def _read_entries(file: Path) -> Columns | list[dict[str, Any]]:
    columns, rest = read_columns(file) or (None, None)
    if columns is not None and rest == []:
        # Entries with names of files or only some masks are read one by one.
        partial = columns.has("segmentation").any() and not columns.has("text").all()
        if not partial and b'"file_name"' not in file.read_bytes():
            return columns
    entries = read_json(file)
    if not isinstance(entries, list) or not all(isinstance(row, dict) for row in entries):
        raise DataError(f"{file}: must be a list of COCO results")
    return entries


def kinds_of(source: Path | str) -> set[str]:
    """Return the IoU types that a results file has, see `read_results`."""
    return _available(_read_entries(Path(source)), ())


def _available(entries: Columns | list[dict[str, Any]], required: Sequence[str]) -> set[str]:
    """Return the IoU types to read: `required`, or those that the entries have."""
    shares = {}
    for kind, field in IOU_TYPES.items():
        if isinstance(entries, list):
            shares[kind] = sum(row.get(field) is not None for row in entries) / max(len(entries), 1)
        else:
            shares[kind] = float(entries.has(field).mean()) if len(entries) else 0.0
    masks = shares["segm"] >= _MIN_MASKS
    kinds = set(required)
    if not required:
        kinds = {"bbox", *(kind for kind, share in shares.items() if share == 1)}
        kinds |= {"segm"} if masks else set()
    if "bbox" in kinds and shares["bbox"] < 1 and masks:
        kinds |= {"segm"}  # which gives the missing boxes
    return kinds


def _resolve_ids(entries: list[dict[str, Any]], truth: Truth) -> None:
    """Replace text by the ids of images and categories in the ground truth, in place.

    DataError if the file name of an entry belongs to another image than its id.
    """
    files: dict[str, int | None] = {}
    for number, image in truth.imgs.items():
        path = Path(str(image.get("file_name", "")))
        for spelling in {str(path), path.name, path.stem}:
            files[spelling] = None if files.get(spelling, number) != number else number
    names = {str(row.get("name", "")).casefold(): n for n, row in truth.cats.items()}
    for n, row in enumerate(entries):
        for field, known, texts in (
            ("image_id", truth.imgs, files), ("category_id", truth.cats, names),
        ):  # fmt: skip
            if isinstance(text := row.get(field), str):
                number = int(text) if text.isdecimal() and int(text) in known else None
                key = text if field == "image_id" else text.casefold()
                row[field] = texts.get(key) if number is None else number
                if row[field] is None:
                    what = "the file name of one image" if field == "image_id" else "a category"
                    raise DataError(
                        f"result {n}: {field} is {short_repr(text)}, which is neither an id nor "
                        f"{what} of the ground truth"
                    )
        owner = files.get(str(row.get("file_name", "")))
        if owner is not None and owner != row.get("image_id"):
            raise DataError(
                f"result {n}: image_id is {short_repr(row.get('image_id'))}, but its file_name "
                f"{short_repr(row['file_name'])} is image {owner} of the ground truth: correct the "
                "ids, or remove the names"
            )


def _fill_masks(
    entries: list[dict[str, Any]], truth: Truth, kinds: Sequence[str], name: str
) -> None:
    """Give entries without a mask an empty one, in place, and log their number."""
    lacking = [row for row in entries if row.get("segmentation") is None]
    if "segm" not in kinds or not lacking:
        return
    if len(lacking) > (1 - _MIN_MASKS) * len(entries):
        return  # an error follows
    for row in lacking:
        image = truth.imgs.get(row.get("image_id", -1), {})
        height, width = image.get("height", 1), image.get("width", 1)
        empty = rle_codec.encode(np.zeros((height, width), np.uint8, order="F"))
        row["segmentation"] = {**empty, "counts": empty["counts"].decode()}
    logger.warning(
        "%s: %d of %d detections have no mask. They count as wrong among the masks",
        name, len(lacking), len(entries),
    )  # fmt: skip


def _convert(entries: Columns | list[dict[str, Any]], kinds: Sequence[str]) -> Results:
    """Convert the fields of `kinds`, and compute boxes that are missing from masks."""
    if isinstance(entries, Columns):
        with_boxes = bool(entries.has("bbox").all())
    else:
        with_boxes = all(row.get("bbox") is not None for row in entries)
    from_masks = not with_boxes and {"bbox", "segm"} <= {*kinds}
    read = [kind for kind in kinds if not (from_masks and kind == "bbox")]
    if isinstance(entries, Columns):
        results = Results.from_columns(entries, read)
    else:
        results = Results.from_coco(entries, read)
    if not from_masks:
        return results
    assert results.masks is not None
    rles = list(results.masks.rles())
    for number, rle in enumerate(rles):
        height, width = rle["size"]
        if problem := rle_problem(rle, height, width, may_be_empty=True):
            raise DataError(f"result {number}: {problem}")
    return replace(results, boxes=np.asarray(rle_codec.toBbox(rles)).reshape(-1, 4))


def _check_plausible(results: Results, truth: Truth, name: str, max_dets: int) -> Results:
    """Check the units of scores and boxes, and return the results with scores from 0 to 1."""
    low, high = results.scores.min(initial=0), results.scores.max(initial=0)
    if low < 0 or high > 100:
        n = int(results.scores.argmin() if low < 0 else results.scores.argmax())
        raise DataError(
            f"result {n}: the score is {results.scores[n]:g}, but scores are from 0 to 1: convert "
            "logits by a sigmoid"
        )
    if high > 1:
        logger.warning("%s: the scores are up to %g and are read as percent", name, high)
        results = replace(results, scores=results.scores / 100)
    known = all(row.get("height") and row.get("width") for row in truth.imgs.values())
    if results.boxes is not None and len(results) and known:
        _check_boxes(results.boxes, image_sizes(truth, results.image_ids))
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


def _check_boxes(boxes: np.ndarray, sizes: np.ndarray) -> None:
    """Raise DataError for boxes [N, 4] that are fractions or corners; sizes [N, 2] of images."""
    sides = np.tile(sizes[:, ::-1], 2)
    if boxes.max() <= 1 and sides.min() > 2:
        raise DataError(
            "the boxes are fractions of the image size, but COCO's are [x, y, width, height] in "
            "pixels: multiply them by the width and height of their image"
        )
    beyond = (boxes[:, :2] + boxes[:, 2:] > sides[:, :2] + 1).any(axis=1)
    corners = (boxes[:, 2:] >= boxes[:, :2]).all() and (boxes <= sides + 1).all()
    if corners and beyond.mean() > _MIN_OUTSIDE:
        raise DataError(
            "the boxes are corners [x1, y1, x2, y2], but COCO's are [x, y, width, height]: "
            "subtract x1 and y1 from x2 and y2"
        )


def read_columns(file: Path) -> tuple[Columns, Any] | None:
    """Read a file with a list of entries, or an object whose "annotations" are the entries.

    Returns the columns, and the content of the file without the entries; None if the kernel is not
    available or lacks mask scores, or if the file is not in UTF-8 or COCO's format. DataError if
    it cannot be read.
    """
    try:
        text = np.fromfile(file, np.uint8)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    tensors = ops.read_annotations(torch.from_numpy(text))
    if not tensors or tensors[0][0] < 0 or tensors[3].shape[1] < 7:  # 7: an older kernel has fewer
        return None
    if (text >= 0x80).any():  # the kernel skips other names and texts unread
        try:
            text.tobytes().decode()
        except UnicodeDecodeError:
            return None
    span, *columns = (tensor.numpy() for tensor in tensors)
    rest = text[: span[0]].tobytes() + b"[]" + text[span[1] :].tobytes()
    return Columns(*columns), json.loads(rest)
