"""An index made of an annotation file, which is read in a stream and checked entry by entry."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.errors import DataError
from detlite.data.file_type import why_no_coco, why_no_json

from .annotation_checks import annotation_problem, keypoints_problem, segmentation_problem
from .coco_checks import check_categories, check_images, keypoint_names
from .coco_stream import NotAnObjectError, read_parts
from .file_format import IndexFile, IndexWriter
from .index import CROWD, NO_KEYPOINTS, NO_MASK, UNSOUND, mark_repeated

_LISTS = ("images", "annotations", "categories")
_BLOCK = 1 << 22  # bytes that are read at once
_GROUP = 1000  # entries that are read again at once


def content_hash(file: Path) -> str:
    """A hash of what a file holds.

    Raises:
        DataError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=20)
    for block in _blocks(file):
        digest.update(block)
    return digest.hexdigest()


def write_index(file: Path, by_url: bool, content: str, writer: IndexWriter) -> None:
    """Reads an annotation file, and checks and writes all of it.

    Args:
        file: the annotation file.
        by_url: call pictures as `coco_url` ends, where it is given: `val2017/<picture>`.
        content: its `content_hash`.
        writer: what to write it with.

    Raises:
        DataError: the file is missing, not JSON, not COCO, has ids of images or categories, or
            names of categories, that occur twice, or has changed meanwhile. Annotations that are
            unsound are marked as such.
        OSError: the index cannot be written.
    """
    try:
        _write(file, by_url, content, writer)
    except RecursionError as error:
        raise DataError(f"{file}: is not in COCO form: nested too deep") from error


def _write(file: Path, by_url: bool, content: str, writer: IndexWriter) -> None:
    digest = hashlib.blake2b(digest_size=20)
    whole, ends = _copy(file, writer, digest.update)
    if digest.hexdigest() != content:
        raise DataError(f"{file}: was changed while it was read; start again when it is complete")
    written = writer.reader()
    ids, sizes, folders = check_images(file, by_url, _rows(written, ends["images"]))
    whole["categories"] = list(_rows(written, ends["categories"]))
    check_categories(file, whole["categories"])
    if (sizes < 1).any():
        number = int((sizes < 1).any(axis=1).argmax())
        height, width = sizes[number].tolist()
        raise DataError(f"{file}: image {ids[number]} has size {width}x{height}")
    writer.array("image_ids", ids)
    writer.array("sizes", sizes)
    writer.array("images", np.stack([ends["images"][:-1], ends["images"][1:]], axis=1))
    _write_annotations(writer, written, ends["annotations"], ids, sizes, whole["categories"])
    members = {key: value for key, value in whole.items() if key not in ("images", "annotations")}
    writer.finish(hash=content, by_url=by_url, content=members, folders=sorted(folders))


def _blocks(file: Path, seen: Callable[[bytes], object] = bool) -> Iterator[bytes]:
    try:
        with file.open("rb", buffering=0) as opened:
            while block := opened.read(_BLOCK):
                seen(block)
                yield block
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _copy(
    file: Path, writer: IndexWriter, seen: Callable[[bytes], object]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Writes the entries of the lists.

    Returns:
        The other members, and of each list where its entries lie: int64 [N + 1], entry n from
        place n of it to place n + 1.
    """
    whole: dict[str, Any] = {}
    ends: dict[str, array[int]] = {}
    wrong = set()
    try:
        for key, value, text in read_parts(_blocks(file, seen), _LISTS):
            if text is None:
                whole[key] = value
                ends[key] = array("q", [writer.place])
                wrong.discard(key)
                continue
            writer.write(text.encode("utf-8", "surrogatepass"))
            ends[key].append(writer.place)
            if not isinstance(value, dict):
                wrong.add(key)
    except NotAnObjectError as error:
        why = why_no_json(file, error)
        raise DataError(f"{file}: is not in COCO form: holds a {error}{why}") from error
    except DataError:
        raise
    except ValueError as error:
        why = why_no_json(file, error)
        raise DataError(f"{file}: is not JSON: {error}{why}") from error
    for key in _LISTS:
        if not isinstance(whole.get(key), list) or key in wrong:
            missing = whole.get(key) is None
            what = "has no" if missing else "holds something else than a list of objects as"
            raise DataError(f"{file}: is not in COCO form: {what} {key!r}{why_no_coco({*whole})}")
    # Of members that occur twice the last one counts, and its texts alone are looked at again.
    return whole, {key: np.array(ends[key]) for key in _LISTS}


def _rows(written: IndexFile, ends: np.ndarray) -> Iterator[dict[str, Any]]:
    """The entries of a list, again."""
    for first in range(0, len(ends) - 1, _GROUP):
        places = ends[first : first + _GROUP + 1].tolist()
        data = written.read(places[0], places[-1])
        for start, stop in pairwise(places):
            yield json.loads(data[start - places[0] : stop - places[0]])


def _write_annotations(
    writer: IndexWriter,
    written: IndexFile,
    ends: np.ndarray,
    ids: np.ndarray,
    sizes: np.ndarray,
    categories: list[dict[str, Any]],
) -> None:
    """Checks the annotations, and writes what is known of them, image by image.

    "first" int64 [I + 1] says which are those of an image; after them come those of none.
    "annotations" int64 [A, 2] is where each lies, "states" uint8 [A] holds the bits of `index.py`,
    "labelled" int32 [A] how many of its keypoints are labelled, and "category_ids" is int64 [A].
    """
    by_id = dict(zip(ids.tolist(), map(tuple, sizes.tolist()), strict=True))
    known = {row["id"] for row in categories}
    points = len(keypoint_names(sorted(categories, key=lambda row: row["id"])))
    states, labelled = array("B"), array("i")
    own_ids, image_ids, category_ids = array("q"), array("q"), array("q")
    for row in _rows(written, ends):
        state = number = image_id = category_id = visible = 0
        if annotation_problem(row, by_id, known, masks=False, keypoint_count=0):
            state = UNSOUND
        else:
            number, image_id, category_id = row["id"], row["image_id"], row["category_id"]
            state |= CROWD * bool(row.get("iscrowd", 0))
            if segmentation_problem(row.get("segmentation"), *by_id[image_id]):
                state |= NO_MASK
            if points and not keypoints_problem(row.get("keypoints"), points):
                visible = sum(v > 0 for v in row["keypoints"][2::3])
            elif points and not state & CROWD:
                state |= NO_KEYPOINTS
        states.append(state)
        labelled.append(visible)
        own_ids.append(number)
        image_ids.append(image_id)
        category_ids.append(category_id)
    bits = np.array(states)
    mark_repeated(bits, np.array(own_ids))

    order = np.argsort(ids)
    place = order[np.searchsorted(ids, np.array(image_ids), sorter=order).clip(max=len(ids) - 1)]
    place[bits & UNSOUND > 0] = len(ids)
    by_image = np.argsort(place, kind="stable")
    writer.array("first", np.searchsorted(place[by_image], np.arange(len(ids) + 1)))
    writer.array("annotations", np.stack([ends[:-1], ends[1:]], axis=1)[by_image])
    writer.array("states", bits[by_image])
    writer.array("labelled", np.array(labelled)[by_image])
    writer.array("category_ids", np.array(category_ids)[by_image])
