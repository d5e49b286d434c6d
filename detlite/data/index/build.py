"""Open the index of an annotation file, and build it if it does not exist.

The name of an index is a hash of the content of its annotation file. A copied or touched file
needs no new index, and a change is never missed. Reading the whole file at every start would take
long on a slow disk, so a note holds the hash as long as size, times and inode of the file stay.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from detlite.atomic_write import atomic_open
from detlite.data import cache
from detlite.data.datasets.coco_checks import (
    annotation_problem,
    check_categories,
    check_images,
    keypoint_names,
    keypoints_problem,
    segmentation_problem,
)
from detlite.data.errors import DataError
from detlite.data.file_type import explain_not_coco, explain_not_json

from .annotation_index import (
    CROWD,
    INVALID,
    NO_KEYPOINTS,
    NO_MASK,
    AnnotationIndex,
    DamagedIndexError,
    IndexFile,
    IndexWriter,
    flag_duplicates,
)
from .json_stream import NotAnObjectError, read_members

_LISTS = ("images", "annotations", "categories")
_BLOCK = 1 << 22  # bytes per read
_GROUP = 1000  # entries that are parsed together in the second pass
_logger = logging.getLogger(__name__)


def open_index(file: Path, by_url: bool = False) -> AnnotationIndex:
    """Open the index of an annotation file; build it if there is none for this content.

    If several processes ask for an index, one builds it. If the cache folder cannot be written, the
    index is built in a temporary folder of this process. Invalid annotations are flagged. Raises
    DataError if the file is not valid COCO otherwise, or if there is no space for the index.
    """
    folder = cache.folder()
    if folder is not None:
        try:
            return AnnotationIndex(_cached_index(file, by_url, folder))
        except OSError as error:
            _logger.warning(
                "%s: the index is built in a temporary folder, and again at the next start: %s "
                "(set %s to a folder with space)", file, str(error), cache.VARIABLE,
            )  # fmt: skip
    try:
        return AnnotationIndex(_cached_index(file, by_url, cache.process_folder()))
    except OSError as error:
        raise DataError(
            f"{file}: no space for the index, which is about as large as the file ({error}). Set "
            f"{cache.VARIABLE} to a folder with space"
        ) from error


def _cached_index(file: Path, by_url: bool, folder: Path) -> IndexFile:
    """Open or build an index in a folder. Raises OSError if it cannot be written."""
    note_file = folder / f"{cache.key(file.absolute())}.note"
    try:
        stamp = cache.file_stamp(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    note = cache.read_note(note_file)
    known = stamp is not None and isinstance(note, dict) and note.get("stamp") == stamp
    content = str(note["hash"]) if known else content_hash(file)
    path = folder / f"{content}{'-by-url' * by_url}.index"
    index = _open_valid(path, content)
    if index is None:
        folder.mkdir(parents=True, exist_ok=True)
        with cache.exclusive_lock(path.with_suffix(".lock")):
            index = _open_valid(path, content)  # another process may have built it
            if index is None:
                cache.delete_unused(folder)
                with atomic_open(path, "wb", unique=True) as stream:
                    _build(file, by_url, content, stream)
                index = IndexFile.open(path)
    # The folder may belong to another user.
    with contextlib.suppress(OSError):
        os.utime(path)  # marks it as used
        if stamp is not None and not known:
            cache.write_note(note_file, {"stamp": stamp, "hash": content})
    return index


def _open_valid(path: Path, content: str) -> IndexFile | None:
    try:
        index = IndexFile.open(path)
    except FileNotFoundError:
        return None
    except DamagedIndexError as error:
        _logger.warning("%s; it is built again", error)
        return None
    return index if index.table.get("hash") == content else None


def content_hash(file: Path) -> str:
    """Return a hash of the content of a file. Raises DataError if it cannot be read."""
    digest = hashlib.blake2b(digest_size=20)
    for block in _blocks(file):
        digest.update(block)
    return digest.hexdigest()


def _build(file: Path, by_url: bool, content: str, stream: IO[bytes]) -> None:
    start = time.perf_counter()
    try:
        write_index(file, by_url, content, IndexWriter(stream))
    except RecursionError as error:
        raise DataError(f"{file}: not in COCO form: the JSON is nested too deeply") from error
    _logger.info("%s: built its index in %.1f s", file, time.perf_counter() - start)


def write_index(file: Path, by_url: bool, content: str, writer: IndexWriter) -> None:
    """Read, check and write the whole content of an annotation file.

    Raises DataError, or OSError if the index cannot be written. `content` is the expected hash.
    """
    digest = hashlib.blake2b(digest_size=20)
    members, ends = _copy_entries(file, writer, digest.update)
    if digest.hexdigest() != content:
        raise DataError(f"{file}: the file changed while it was read; start again")
    written = writer.reader()
    ids, sizes, folders = check_images(file, by_url, _entries(written, ends["images"]))
    members["categories"] = list(_entries(written, ends["categories"]))
    check_categories(file, members["categories"])
    if (sizes < 1).any():
        number = int((sizes < 1).any(axis=1).argmax())
        height, width = sizes[number].tolist()
        raise DataError(f"{file}: image {ids[number]} has size {width}x{height}")
    writer.array("image_ids", ids)
    writer.array("sizes", sizes)
    writer.array("images", np.stack([ends["images"][:-1], ends["images"][1:]], axis=1))
    _write_annotations(writer, written, ends["annotations"], ids, sizes, members["categories"])
    table = {key: value for key, value in members.items() if key not in ("images", "annotations")}
    writer.finish(hash=content, by_url=by_url, content=table, folders=sorted(folders))


def _blocks(file: Path, observe: Callable[[bytes], object] = bool) -> Iterator[bytes]:
    try:
        with file.open("rb", buffering=0) as stream:
            while block := stream.read(_BLOCK):
                observe(block)
                yield block
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _copy_entries(
    file: Path, writer: IndexWriter, observe: Callable[[bytes], object]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Write the texts of the entries of all lists.

    Return the other members of the file, and for each list the positions of its N entries, int64
    [N + 1]: entry n starts at position n and ends at position n + 1.
    """
    members: dict[str, Any] = {}
    ends: dict[str, array[int]] = {}
    invalid = set()
    try:
        for key, value, text in read_members(_blocks(file, observe), _LISTS):
            if text is None:
                # The last of several members with one key counts.
                members[key] = value
                ends[key] = array("q", [writer.position])
                invalid.discard(key)
                continue
            writer.write(text.encode("utf-8", "surrogatepass"))
            ends[key].append(writer.position)
            if not isinstance(value, dict):
                invalid.add(key)
    except NotAnObjectError as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: not in COCO form: a JSON {error}, not an object{hint}") from error
    except DataError:
        raise
    except ValueError as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: not valid JSON: {error}{hint}") from error
    for key in _LISTS:
        if members.get(key) is None:
            hint = explain_not_coco({*members})
            raise DataError(f"{file}: not in COCO form: {key!r} is missing{hint}")
        if not isinstance(members[key], list) or key in invalid:
            raise DataError(f"{file}: not in COCO form: {key!r} must be a list of objects")
    return members, {key: np.array(ends[key]) for key in _LISTS}


def _entries(written: IndexFile, ends: np.ndarray) -> Iterator[dict[str, Any]]:
    """Parse the written entries of a list."""
    for first in range(0, len(ends) - 1, _GROUP):
        positions = ends[first : first + _GROUP + 1].tolist()
        data = written.read(positions[0], positions[-1])
        for start, stop in pairwise(positions):
            yield json.loads(data[start - positions[0] : stop - positions[0]])


def _write_annotations(
    writer: IndexWriter,
    written: IndexFile,
    ends: np.ndarray,
    ids: np.ndarray,
    sizes: np.ndarray,
    categories: list[dict[str, Any]],
) -> None:
    """Check the annotations and write their arrays, grouped by image.

    - "first", int64 [I + 1]: the first annotation of each image. Annotations without a valid image
      come last.
    - "annotations", int64 [A, 2]: start and end of the text.
    - "states", uint8 [A]: the flags of `annotation_index`.
    - "labelled", int32 [A]: the number of labeled keypoints.
    - "category_ids", int64 [A].
    """
    size_of = dict(zip(ids.tolist(), map(tuple, sizes.tolist()), strict=True))
    known = {row["id"] for row in categories}
    points = len(keypoint_names(sorted(categories, key=lambda row: row["id"])))
    all_flags, all_labeled = array("B"), array("i")
    annotation_ids, image_ids, category_ids = array("q"), array("q"), array("q")
    for row in _entries(written, ends):
        flags = annotation_id = image_id = category_id = labeled = 0
        if annotation_problem(row, size_of, known, masks=False, keypoint_count=0):
            flags = INVALID
        else:
            annotation_id, image_id, category_id = row["id"], row["image_id"], row["category_id"]
            flags |= CROWD * bool(row.get("iscrowd", 0))
            if segmentation_problem(row.get("segmentation"), *size_of[image_id]):
                flags |= NO_MASK
            if points and not keypoints_problem(row.get("keypoints"), points):
                labeled = sum(v > 0 for v in row["keypoints"][2::3])
            elif points and not flags & CROWD:
                flags |= NO_KEYPOINTS
        all_flags.append(flags)
        all_labeled.append(labeled)
        annotation_ids.append(annotation_id)
        image_ids.append(image_id)
        category_ids.append(category_id)
    states = np.array(all_flags)
    flag_duplicates(states, np.array(annotation_ids))

    order = np.argsort(ids)
    place = np.searchsorted(ids, np.array(image_ids), sorter=order).clip(max=len(ids) - 1)
    image_number = order[place]
    image_number[states & INVALID > 0] = len(ids)
    by_image = np.argsort(image_number, kind="stable")
    writer.array("first", np.searchsorted(image_number[by_image], np.arange(len(ids) + 1)))
    writer.array("annotations", np.stack([ends[:-1], ends[1:]], axis=1)[by_image])
    writer.array("states", states[by_image])
    writer.array("labelled", np.array(all_labeled)[by_image])
    writer.array("category_ids", np.array(category_ids)[by_image])
