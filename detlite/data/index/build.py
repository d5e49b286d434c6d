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
from detlite.data.datasets.coco_values import integer, keypoint_names
from detlite.data.errors import DataError
from detlite.data.file_type import explain_not_coco, explain_not_json
from detlite.data.findings import Findings

from .annotation_index import AnnotationIndex, DamagedIndexError, IndexFile, IndexWriter
from .json_stream import NotAnObjectError, read_members
from .normalization import (
    AnnotationReader,
    drop_namesakes,
    read_categories,
    read_images,
)

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
    written, findings = writer.reader(), Findings()
    images = read_images(file, _entries(written, ends["images"]), by_url, findings)
    rows = list(_entries(written, ends["categories"]))
    categories, read_category_id = read_categories(file, rows, findings)
    points = len(keypoint_names(sorted(categories, key=lambda row: row["id"])))
    reader = AnnotationReader(images, categories, read_category_id, points, findings)
    writer.array("image_ids", images.ids)
    writer.array("sizes", images.sizes)
    spans = np.stack([ends["images"][:-1], ends["images"][1:]], axis=1)
    writer.array("images", spans[images.positions])
    numbered, used = _write_annotations(writer, written, ends["annotations"], reader)
    reader.check_boxes(file)
    members["categories"] = drop_namesakes(file, categories, used, findings)
    writer.finish(
        hash=content,
        by_url=by_url,
        content={key: value for key, value in members.items() if key not in _LISTS[:2]},
        folders=sorted(images.folders),
        image_problems=images.problems,
        numbered=numbered,
        findings=findings.to_json(),
        examples=reader.examples,
    )


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
    writer: IndexWriter, written: IndexFile, ends: np.ndarray, reader: AnnotationReader
) -> tuple[bool, set[int]]:
    """Read the annotations and write their arrays, grouped by image.

    - "first", int64 [I + 1]: the first annotation of each image. Annotations without a valid image
      come last.
    - "annotations", int64 [A, 2]: start and end of the text.
    - "positions", int64 [A]: place in the file.
    - "states", uint16 [A]: the flags of `states`.
    - "labelled", int32 [A]: the number of labeled keypoints.
    - "category_ids", int64 [A].

    Returns:
        True if the ids are not unique integers, so that positions replace them; and the ids of the
        categories that have annotations.
    """
    all_flags, all_labeled = array("H"), array("i")
    ids, places, category_ids = array("q"), array("q"), array("q")
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    unnamed = ""
    for position, row in enumerate(_entries(written, ends)):
        read, flags, place, category_id, labeled = reader.read(row, position)
        if read is not row:
            start = writer.position
            writer.write(json.dumps(read).encode("utf-8", "surrogatepass"))
            spans[position] = start, writer.position
        annotation_id = row.get("id")
        if type(annotation_id) is not int or integer(annotation_id) is None:
            unnamed = unnamed or f"annotation at position {position} has id {annotation_id!r}"
            annotation_id = 0
        all_flags.append(flags)
        all_labeled.append(labeled)
        ids.append(annotation_id)
        places.append(place)
        category_ids.append(category_id)
    values, counts = np.unique(np.array(ids, np.int64), return_counts=True)
    repeated = values[counts > 1]
    if unnamed or len(repeated):
        reader.findings.add(
            "ids of annotations that are not different integers",
            "All annotations are numbered from 1 in the order of the file.",
            unnamed or f"{counts.max()} annotations have the id {values[counts.argmax()]}",
            "file",
        )
    states, number = np.array(all_flags, np.uint16), np.array(places, np.int64)
    number[number < 0] = len(reader.images.ids)
    by_image = np.argsort(number, kind="stable")
    writer.array("first", np.searchsorted(number[by_image], np.arange(len(reader.images.ids) + 1)))
    writer.array("annotations", spans[by_image])
    writer.array("positions", by_image)
    writer.array("states", states[by_image])
    writer.array("labelled", np.array(all_labeled, np.int32)[by_image])
    writer.array("category_ids", np.array(category_ids, np.int64)[by_image])
    located = np.unique(np.array(category_ids, np.int64)[number < len(reader.images.ids)])
    return bool(unnamed) or len(repeated) > 0, set(located.tolist())
