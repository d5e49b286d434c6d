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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from detlite.data.datasets.coco_values import keypoint_names
from detlite.data.errors import DataError
from detlite.data.findings import Finding, Findings

from .normalization import set_file_name
from .states import (
    BAD_KEYPOINTS,
    BAD_MASK,
    CROWD,
    IGNORED,
    NO_MASK,
    PROBLEMS,
    Selection,
    annotation_name,
    describe,
    located,
)

# Increase the number with every change of the content of indexes or of the checks behind it.
_MAGIC = b"detlite index 3\n"
_HEADER = struct.Struct("<16sQQI4x")  # magic, position and length of the table, its CRC-32
_FIX = "Training stops at them: fix them (`detlite check --repair`), or set ON_BAD_ANNOTATION skip."
_CROWDS = (
    "They are neither trained on nor measured. CVAT marks every mask drawn by brush so: if these "
    "are single objects, set DATASETS.CROWDS_AS_OBJECTS True."
)
_IGNORED = "They are ignored regions: what is detected there is neither right nor wrong."
_EMPTY = "They are not trained on. If they contain no objects, set DATASETS.BACKGROUND_IMAGES True."
# Selects annotations by their states [A], as bool [A].
Select = Callable[[np.ndarray], np.ndarray]


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
        height, width = self.file.array("sizes", number, number + 1)[0].tolist()
        entry |= {"height": height, "width": width}
        entry["id"] = int(self.file.array("image_ids", number, number + 1)[0])
        return set_file_name(entry, self.file.table["by_url"])

    def annotations(self, number: int, select: Select = located) -> list[dict[str, Any]]:
        """Return the selected annotations of an image, in file order."""
        rows = self._load(self._select("annotations", number, select))
        if self.file.table["numbered"]:
            for row, position in zip(rows, self._select("positions", number, select), strict=True):
                row["id"] = int(position) + 1
        return rows

    def category_ids(self, number: int, select: Select) -> np.ndarray:
        return self._select("category_ids", number, select)

    def counts(self, select: Select = np.ones_like, labeled_keypoints: bool = False) -> np.ndarray:
        """Count the selected annotations of each image, int64 [I], or their labeled keypoints."""
        counted = select(self.file.array("states")).astype(np.int64)
        return self._sums(counted * self.file.array("labelled") if labeled_keypoints else counted)

    def labeled_objects(self, select: Select) -> np.ndarray:
        """Count the selected annotations of each image with labeled keypoints, int64 [I]."""
        return self._sums(select(self.file.array("states")) & (self.file.array("labelled") > 0))

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the annotations of each image."""
        sums = np.concatenate([[0], values.cumsum(dtype=np.int64)])
        return np.diff(sums[self.file.array("first")])

    def full_content(self) -> dict[str, Any]:
        """Return the content of the annotation file in COCO's notation, with its findings."""
        order = np.argsort(self.file.array("positions"))
        rows = self._load(self.file.array("annotations")[order])
        if self.file.table["numbered"]:
            rows = [{**row, "id": number} for number, row in enumerate(rows, start=1)]
        content = {**self.content, "annotations": rows}
        content["images"] = [self.image(number) for number in range(len(self.image_ids))]
        findings = [*Findings.from_json(self.content.get("findings")), *self.notes]
        return content | ({"findings": Findings(findings).to_json()} if findings else {})

    @property
    def keypoint_names(self) -> list[str]:
        return keypoint_names(sorted(self.content["categories"], key=lambda row: row["id"]))

    @property
    def notes(self) -> Findings:
        """Findings about entries that were not in COCO's notation."""
        return Findings.from_json(self.file.table["findings"])

    def bad_annotations(
        self, selection: Selection, limit: int | None = None
    ) -> list[tuple[dict[str, Any], str, str]]:
        """Return the first invalid annotations as written, with their names and problems."""
        states, positions = self.file.array("states"), self.file.array("positions")
        bad = np.flatnonzero(selection.bad(states))
        bad = bad[np.argsort(positions[bad])[:limit]]
        numbers = np.searchsorted(self.file.array("first"), bad, side="right") - 1
        sizes, names = self.sizes, self.keypoint_names
        described = []
        spans = self.file.array("annotations")[bad]
        for index, number, row in zip(
            bad.tolist(), numbers.tolist(), self._load(spans), strict=True
        ):
            where = annotation_name(row, int(positions[index]))
            size = tuple(sizes[min(number, len(sizes) - 1)].tolist())
            flags = int(states[index]) & selection.refused
            problem = describe(row, flags, size, self.content["categories"], len(names))
            described.append((row, where, problem))
        return described

    def problems(self, selection: Selection, limit: int | None = None) -> tuple[list[str], int]:
        """Describe the first invalid entries of images and annotations, and count all of them."""
        of_images = [": ".join(pair) for pair in self.file.table["image_problems"]]
        count = len(of_images) + int(selection.bad(self.file.array("states")).sum())
        texts = [f"{where}: {text}" for _, where, text in self.bad_annotations(selection, limit)]
        return [*of_images, *texts][:limit], count

    def findings(
        self,
        selection: Selection,
        skip: bool,
        bad_images: Mapping[int, str] = MappingProxyType({}),
        background: bool = True,
    ) -> list[Finding]:
        """Return what is left out, reinterpreted or switched off with these targets.

        Args:
            selection: the annotations that are used.
            skip: unusable annotations are skipped instead of stopping the training.
            bad_images: what is wrong with image files, by number.
            background: images without annotations are used.
        """
        table, states = self.file.table, self.file.array("states")
        examples = {int(flag): text for flag, text in table["examples"].items()}
        total, bad = len(states), selection.bad(states)
        found: list[Finding] = []
        entries = [": ".join(problem) for problem in table["image_problems"]]
        shards = self.content.get("problems", {}) if "shards" in self.content else {}
        for what, count, first in (
            ("entries of shards that cannot be used", shards.get("count", 0), shards.get("first")),
            ("entries of images that cannot be used", len(entries), entries),
            ("image files that cannot be used", len(bad_images), [*bad_images.values()]),
        ):
            effect = "They are left out with their objects." if skip else _FIX
            found.append(Finding(what, effect, count, "image", first[0] if first else ""))
        kinds = [
            (what, effect if skip else _FIX, flag, bad & (states & flag & selection.refused > 0))
            for flag, (what, effect) in PROBLEMS.items()
        ]
        kinds += [
            ("crowds (iscrowd 1)", _CROWDS, CROWD, selection.crowds(states)),
            ('annotations with "ignore": 1', _IGNORED, IGNORED, states & IGNORED > 0),
        ]
        for what, effect, flag, counted in kinds:
            example = examples.get(flag, "")
            found.append(Finding(what, effect, int(counted.sum()), example=example, total=total))
        found = [finding for finding in found if finding.count]
        found += self._unused(selection, states, examples)
        found += [*Findings.from_json(self.content.get("findings")), *self.notes]
        if not background and (empty := np.flatnonzero(self.counts() == 0)).size:
            first = self.image(int(empty[0]))
            example = f"image {first['id']} ({first['file_name']})"
            counts = len(empty), "image", example, len(self.image_ids)
            found.append(Finding("images without annotations", _EMPTY, *counts))
        return found

    def _unused(
        self, selection: Selection, states: np.ndarray, examples: dict[int, str]
    ) -> Iterator[Finding]:
        """Yield masks and keypoints that are switched off although some objects have them."""
        objects = replace(selection, masks=False, keypoints=False).objects(states)
        total, masks = (
            int(objects.sum()),
            int((objects & (states & (NO_MASK | BAD_MASK) == 0)).sum()),
        )
        if not selection.masks and 0 < masks < total:
            yield Finding(
                "masks that are not used, because MODEL.MASK_ON is False",
                "To train on them, complete the others, or set MODEL.MASK_ON True and "
                "DATASETS.ON_BAD_ANNOTATION skip, which ignores objects without a mask.",
                masks, "object", examples.get(BAD_MASK, examples.get(NO_MASK, "")), total,
            )  # fmt: skip
        points = int((objects & (self.file.array("labelled") > 0)).sum())
        if not selection.keypoints and 0 < points < total:
            yield Finding(
                "keypoints that are not used, because MODEL.KEYPOINT_ON is False",
                "To train on them, set it True; objects without keypoints then train the boxes.",
                points, "object", examples.get(BAD_KEYPOINTS, ""), total,
            )  # fmt: skip

    def _select(self, name: str, number: int, select: Select) -> np.ndarray:
        """Return the rows of an array for the selected annotations of an image."""
        first, last = self.file.array("first", number, number + 2).tolist()
        selected = select(self.file.array("states", first, last))
        return self.file.array(name, first, last)[selected]

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
