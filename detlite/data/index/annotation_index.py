"""The index of an annotation file: its checked images and annotations at known byte positions.

The file of an index holds the JSON text of each image and annotation, then arrays of the values
that are needed for all of them together, then a table of the arrays. A data set
of any size therefore opens fast and takes little memory.

Letters in shapes: I images, A annotations.
"""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from detlite.data.datasets.coco_checks import annotation_problem, set_file_name
from detlite.data.errors import DataError

# Increase the number with every change of the content of indexes or of the checks behind it.
_MAGIC = b"detlite index 2\n"
_HEADER = struct.Struct("<16sQQI4x")  # magic, position and length of the table, its CRC-32

# Flags of an annotation.
CROWD = 1
INVALID = 2  # for every model
NO_MASK = 4  # no valid segmentation
NO_KEYPOINTS = 8
_DUPLICATE = 16  # an earlier valid annotation has the same id; shifted by the targets it must have


def invalid_flags(masks: bool, keypoints: bool) -> int:
    """Return the flags that make an annotation invalid for models with these targets."""
    return INVALID | NO_MASK * masks | NO_KEYPOINTS * keypoints | _duplicate(masks, keypoints)


def flag_duplicates(flags: np.ndarray, ids: np.ndarray) -> None:
    """Flag annotations whose id an earlier valid one has; `flags` uint8 [A] changes in place."""
    for masks in (False, True):
        for keypoints in (False, True):
            valid = np.flatnonzero(flags & invalid_flags(masks, keypoints) == 0)
            duplicate = np.ones(len(valid), bool)
            duplicate[np.unique(ids[valid], return_index=True)[1]] = False
            flags[valid[duplicate]] |= _duplicate(masks, keypoints)


def _duplicate(masks: bool, keypoints: bool) -> int:
    return _DUPLICATE << (masks + 2 * keypoints)


class AnnotationIndex:
    """The content of an annotation file. Images are numbered from 0 in the order of the file.

    A pickle of it holds only the path of the index.

    Attributes:
        content: the members of the annotation file except images and annotations.
        folders: the folders of the images, relative to the image folder of the data set.
        image_ids: int64 [I].
        sizes: int64 [I, 2], (height, width).
    """

    def __init__(self, file: IndexFile) -> None:
        self.file = file
        self.content: dict[str, Any] = file.table["content"]
        self.folders: list[str] = file.table["folders"]

    def __reduce__(self) -> tuple[Any, ...]:
        return AnnotationIndex, (self.file,)

    @property
    def image_ids(self) -> np.ndarray:
        return self.file.array("image_ids")

    @property
    def sizes(self) -> np.ndarray:
        return self.file.array("sizes")

    def image(self, number: int) -> dict[str, Any]:
        """Return the entry of an image; it has a `file_name`."""
        (entry,) = self._load(self.file.array("images", number, number + 1))
        return set_file_name(entry, self.file.table["by_url"])

    def annotations(self, number: int, without: int) -> list[dict[str, Any]]:
        """Return the annotations of an image, in file order, with none of the flags `without`."""
        return self._load(self._select("annotations", number, without))

    def category_ids(self, number: int, without: int) -> np.ndarray:
        return self._select("category_ids", number, without)

    def counts(self, without: int, labeled_keypoints: bool = False) -> np.ndarray:
        """Count the annotations of each image with none of the flags `without`, int64 [I].

        With `labeled_keypoints`, count their labeled keypoints instead.
        """
        counted = (self.file.array("states") & without == 0).astype(np.int64)
        if labeled_keypoints:
            counted *= self.file.array("labelled")
        first = self.file.array("first")
        return np.diff(np.concatenate([[0], counted.cumsum()])[first])

    def problems(self, masks: bool, keypoint_count: int, limit: int) -> tuple[list[str], int]:
        """Describe the first `limit` invalid annotations, and count all of them."""
        flags = invalid_flags(masks, keypoint_count > 0)
        invalid = np.flatnonzero(self.file.array("states") & flags)
        if not len(invalid):
            return [], 0
        spans = self.file.array("annotations")
        starts = np.sort(spans[:, 0])
        spans = spans[invalid[np.argsort(spans[invalid, 0])[:limit]]]
        positions = np.searchsorted(starts, spans[:, 0]).tolist()
        sizes = dict(zip(self.image_ids.tolist(), map(tuple, self.sizes.tolist()), strict=True))
        category_ids = {category["id"] for category in self.content["categories"]}
        texts = []
        for row, position in zip(self._load(spans), positions, strict=True):
            problem = annotation_problem(row, sizes, category_ids, masks, keypoint_count)
            where = f"annotation {row.get('id', f'at position {position}')}"
            texts.append(
                f"{where} (image {row.get('image_id')}): {problem or 'the id occurs twice'}"
            )
        return texts, len(invalid)

    def _select(self, name: str, number: int, without: int) -> np.ndarray:
        """Return the rows of an array for the annotations of an image without these flags."""
        first, last = self.file.array("first", number, number + 2).tolist()
        valid = self.file.array("states", first, last) & without == 0
        return self.file.array(name, first, last)[valid]

    def _load(self, spans: np.ndarray) -> list[dict[str, Any]]:
        """Parse the JSON texts at spans int64 [N, 2] of (start, stop)."""
        try:
            return [json.loads(self.file.read(start, stop)) for start, stop in spans.tolist()]
        except json.JSONDecodeError as error:
            raise DataError(
                f"{self.file.path}: the index is damaged. Delete the file; it is made again"
            ) from error


class DamagedIndexError(ValueError):
    """A file is not an index, is truncated, or has another version."""


class IndexWriter:
    """Writes an index to an empty file, which is not a valid index before `finish`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._arrays: dict[str, tuple[str, list[int], int]] = {}
        self.position = file.write(bytes(_HEADER.size))

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.position += len(data)

    def reader(self) -> IndexFile:
        """Return a reader of the bytes written so far; it has no arrays."""
        self._file.flush()
        return IndexFile(Path(self._file.name), {})

    def array(self, name: str, values: np.ndarray) -> None:
        self._arrays[name] = values.dtype.str, list(values.shape), self.position
        self.write(values.tobytes())

    def finish(self, **table: Any) -> None:
        """Append the table with further entries, and wait until everything is on the disk."""
        text = json.dumps({**table, "arrays": self._arrays}).encode()
        header = _HEADER.pack(_MAGIC, self.position, len(text), zlib.crc32(text))
        self._file.write(text)
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())


class IndexFile:
    """An index that is open for reading.

    It is read at byte positions, not memory-mapped. Processes share its pages in both cases, but
    mapped pages count as memory of every process, and a failing disk would kill a process by SIGBUS
    instead of raising an error.
    """

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self.path = path
        self.table = table
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)

    @classmethod
    def open(cls, path: Path) -> IndexFile:
        """Open an index. Raises DamagedIndexError, or OSError."""
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise DamagedIndexError(f"{path}: not an index of this version")
            _, position, length, crc = _HEADER.unpack(header)
            if os.fstat(file.fileno()).st_size != position + length:
                raise DamagedIndexError(f"{path}: the index is truncated")
            file.seek(position)
            text = file.read(length)
        if zlib.crc32(text) != crc:
            raise DamagedIndexError(f"{path}: the table of the index is damaged")
        return cls(path, json.loads(text))

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexFile.open, (self.path,)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` up to but excluding `stop`. Raises DataError."""
        parts = []
        while start < stop:
            # One call returns at most 2 GB.
            try:
                part = os.pread(self._file.fileno(), stop - start, start)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
            if not part:
                raise DataError(f"{self.path}: the index was truncated while in use; start again")
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def array(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return an array, or its rows from `start` to `stop`; it is read-only."""
        dtype, shape, position = self.table["arrays"][name]
        stop = shape[0] if stop is None else stop
        row = np.dtype(dtype).itemsize * math.prod(shape[1:])
        data = self.read(position + start * row, position + stop * row)
        return np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])
