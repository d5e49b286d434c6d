"""Read the entries of COCO annotation and results files, also those that other tools write.

Other notations are converted: names instead of ids, polygons, and entries without some fields.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pycocotools import mask as rle_codec

from detlite import ops
from detlite.data.annotations.ids import Ids
from detlite.data.annotations.single import read_segmentation, rle_problem
from detlite.evaluation.results import IOU_TYPES
from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import read_json
from detlite.files.reading import check_regular
from detlite.structures.categories import CategoryMatch
from detlite.structures.masks.formats import RLE, encode_bitmap, polygons_to_rle, to_bitmap
from detlite.structures.names import file_spellings

from .columns import Columns
from .ground_truth import Truth

logger = logging.getLogger(__name__)

_MIN_SHARE = 0.5  # fraction of detections with a mask or keypoints from which these are measured
_LISTS = ("annotations", "results", "predictions", "detections")  # that contain the entries
_NAMES = (b'"file_name"', b'"category_name"')  # fields that other entries than COCO's have
_NOWHERE = -1e6  # the keypoints of a detection without keypoints, in pixels


def read_columns(file: Path) -> tuple[Columns, Any] | None:
    """Read a file with a list of entries, or an object whose "annotations" are the entries.

    Returns the columns, and the content of the file without the entries; None if the kernel is not
    available or lacks mask scores, or if the file is not in UTF-8 or COCO's format. DataError if
    it cannot be read.
    """
    try:
        check_regular(file)
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


def to_json(content: Any) -> str:
    """Return content in memory as JSON; it may contain arrays, numbers of arrays, and bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        return value.tolist() if hasattr(value, "tolist") else list(value)

    try:
        return json.dumps(content, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"content in memory must be JSON: {error}") from error


def read_entries(source: Any, name: str) -> Columns | list[dict[str, Any]]:
    """Return the entries; `file_name` and `category_name` are the names that they refer to."""
    if isinstance(source, Path | str):
        file = Path(source)
        columns, rest = read_columns(file) or (None, None)
        if columns is not None and rest == [] and _is_uniform(columns) and not _has_names(file):
            return columns
        source = _read_json_or_lines(file)
    else:
        source = json.loads(to_json(source))
    rows, files, names = source, dict[str, Any](), dict[str, Any]()
    if isinstance(source, dict):
        lists = [source[key] for key in _LISTS if isinstance(source.get(key), list)]
        rows = next(filter(None, lists), lists[0] if lists else None)
        for texts, key, field in ((files, "images", "file_name"), (names, "categories", "name")):
            own = source.get(key) or []
            if not isinstance(own, list) or not all(isinstance(row, dict) for row in own):
                raise DataError(f"{name}: {key!r} must be a list of objects")
            texts |= {str(row.get("id")): row.get(field) for row in own}
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{name}: must be a list of COCO results")
    for row in rows:  # the ids of a file with images and categories are its own
        for id_field, field, texts in (
            ("image_id", "file_name", files), ("category_id", "category_name", names),
        ):  # fmt: skip
            if (text := texts.get(str(row.get(id_field)))) is not None:
                row |= {field: text, id_field: None}
    return rows


def _is_uniform(columns: Columns) -> bool:
    """Return True if all entries have a box, and all or none compressed masks and keypoints."""
    masks, compressed = columns.has("segmentation"), columns.has("text")
    points = columns.keypoint_lengths > 0
    return bool(
        columns.has("bbox").all()
        and (masks == compressed).all()
        and all(field.all() or not field.any() for field in (masks, points))
    )


def _has_names(file: Path) -> bool:
    text = file.read_bytes()
    return any(field in text for field in _NAMES)


def _read_json_or_lines(file: Path) -> Any:
    try:
        return read_json(file)
    except DataError:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError, RecursionError):
            rows = []
        if len(rows) < 2:
            raise
        return rows


def available_kinds(
    entries: Columns | list[dict[str, Any]], required: Sequence[str], name: str
) -> set[str]:
    """Return the IoU types to read: `required`, or those that the entries have.

    With a `name`, types that too few entries have are logged.
    """
    kinds = set(required)
    for kind, field in IOU_TYPES.items():
        if isinstance(entries, list):
            count = sum(bool(row.get(field)) for row in entries)
        else:
            count = int(entries.has(field).sum())
        if kind == "bbox" or count >= max(_MIN_SHARE * len(entries), 1):
            kinds |= {kind} if not required else set()
        elif count and not required and name:
            logger.warning(
                "%s: only %d of %d detections have %r, which is not measured", name, count,
                len(entries), field,
            )  # fmt: skip
    return kinds


def resolve_ids(entries: list[dict[str, Any]], truth: Truth, name: str) -> None:
    """Replace names by the ids of images and categories in the ground truth, in place.

    DataError for an unknown name, or if the file name of an entry belongs to another image.
    """
    files: dict[str, int | None] = {}
    ids = Ids.of_entries(truth.imgs.values())
    for image_id, image in truth.imgs.items():
        for spelling in _spellings(image.get("file_name")):
            files[spelling] = None if files.get(spelling, image_id) != image_id else image_id

    def image_of(text: Any) -> int | None:
        found = (files.get(spelling) for spelling in _spellings(text))
        return next((image_id for image_id in found if image_id is not None), None)

    unknown = 0
    for n, row in enumerate(entries):
        written, text = row.get("image_id"), row.get("file_name")
        owner, number = image_of(text), ids.number(written)
        if number is None and isinstance(written, str):
            number = image_of(written)
        if owner is not None and written is not None and owner != number:
            raise DataError(
                f"result {n}: image_id is {short_repr(written)}, but its file_name "
                f"{short_repr(text)} is image {owner} of the ground truth: correct the ids, or "
                "remove the names"
            )
        number = owner if number is None else number
        if number is None and (isinstance(written, str) or (text and written is None)):
            field = "file_name" if written is None else "image_id"
            raise DataError(
                f"result {n}: {field} is {short_repr(row[field])}, which is neither an id nor the "
                "file name of one image of the ground truth"
            )
        unknown += text is not None and owner is None
        row["image_id"] = written if number is None else number
    if unknown:
        logger.warning(
            "%s: the file_name of %d of %d results is not in the ground truth: are these the "
            "results of another dataset?", name, unknown, len(entries),
        )  # fmt: skip
    _resolve_categories(entries, truth, name)


def _spellings(file_name: Any) -> list[str]:
    return file_spellings(str(file_name)) if file_name else []


def _resolve_categories(entries: list[dict[str, Any]], truth: Truth, name: str) -> None:
    """Replace the names of categories by ids, in place. Names take precedence over ids."""
    texts = {
        str(row.get("category_name") or row.get("category_id")): None
        for row in entries
        if row.get("category_name") or isinstance(row.get("category_id"), str)
    }
    categories = [{"name": "", **row} for row in truth.cats.values()]
    labels = "the ground truth", "the results"
    match = CategoryMatch(categories, [{"name": text} for text in texts], labels)
    ids = [None if n is None else categories[n]["id"] for n in match.numbers]
    by_name = dict(zip(texts, ids, strict=True)) if match.named else {}
    changed, ids_of_categories = 0, Ids.of_entries(truth.cats.values())
    for n, row in enumerate(entries):
        written, text = row.get("category_id"), row.get("category_name")
        known = ids_of_categories.number(written)
        named = by_name.get(str(text or written))
        if known is None and named is None and (text or isinstance(written, str)):
            field = "category_name" if text else "category_id"
            raise DataError(
                f"result {n}: {field} is {short_repr(row[field])}, which is neither an id nor a "
                "category of the ground truth"
            )
        changed += bool(text) and named is not None and written is not None and named != known
        row["category_id"] = next((x for x in (named, known) if x is not None), written)
    if changed:
        logger.warning(
            "%s: %d of %d results have the name of another category than their id. %s", name,
            changed, len(entries), match,
        )  # fmt: skip


def complete_entries(
    entries: list[dict[str, Any]], truth: Truth, kinds: Sequence[str], name: str
) -> None:
    """Encode masks, and fill in missing boxes, masks and keypoints, in place."""

    def size(row: dict[str, Any]) -> tuple[int, int]:
        image = truth.imgs.get(row.get("image_id", -1), {})
        return image.get("height") or 1, image.get("width") or 1

    for n, row in enumerate(entries):
        if row.get("segmentation") and ("segm" in kinds or row.get("bbox") is None):
            row["segmentation"] = _encode(row["segmentation"], *size(row), n)
            if row.get("bbox") is None:
                row["bbox"] = rle_codec.toBbox(row["segmentation"]).tolist()
    for kind, field, noun in (("segm", "segmentation", "mask"), ("keypoints",) * 3):
        lacking = [row for row in entries if not row.get(field)]
        if kind not in kinds or not 0 < len(lacking) <= (1 - _MIN_SHARE) * len(entries):
            continue
        logger.warning(
            "%s: %d of %d detections have no %s. They count as wrong", name, len(lacking),
            len(entries), noun,
        )  # fmt: skip
        points = max(len(row.get("keypoints") or ()) for row in entries) // 3
        for row in lacking:
            row[field] = [_NOWHERE, _NOWHERE, 0.0] * points
            if kind == "segm":
                row[field] = encode_bitmap(np.zeros(size(row), np.uint8))


def _encode(mask: Any, height: int, width: int, number: int) -> RLE:
    """Return a mask of a results file as a compressed RLE; DataError if it is invalid."""
    if isinstance(mask, dict) and isinstance(mask.get("counts"), str):
        is_of_image = mask.get("size") == [height, width]  # others are refused later
        problem = is_of_image and rle_problem(mask, height, width, may_be_empty=True)
        if problem:
            raise DataError(f"result {number}: {problem}")
        return mask
    reading = read_segmentation(mask, height, width)
    if reading.problem:
        raise DataError(f"result {number}: {reading.problem}")
    if isinstance(reading.value, list):
        return polygons_to_rle(reading.value, height, width)
    return encode_bitmap(to_bitmap(reading.value, height, width))
