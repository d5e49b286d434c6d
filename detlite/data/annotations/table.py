"""The table of an annotation file: its judged images and annotations at known byte positions.

The file of a table contains the JSON text of each image and annotation, then columns of values, see
`store.write_table`. Texts and most columns are read on demand, at byte positions. A dataset of any
size therefore opens fast and needs little memory.

Letters in shapes: I images, A annotations.
"""

import json
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from detlite.data.findings import Findings
from detlite.files.errors import DataError
from detlite.structures.keypoints import keypoint_names

from .heads import set_file_name
from .ids import WRITTEN_ID
from .judge import PROBLEM_KEY, annotation_name
from .selection import Flag, Selection, located

VERSION = 24  # increase it with every change of the content of tables or of the rules behind it
END = struct.Struct("<QQ")  # of the file: the number of bytes of its facts, and VERSION
_MAX_FACTS = 1 << 32  # bytes
_TOGETHER = 1024  # texts that are read together
# What findings call unusable image entries, and say of them.
BAD_ENTRIES = "entries of images that cannot be used"
SKIPPED = "They are skipped with their objects."
# Selects annotations by their flags [A], as bool [A].
Select = Callable[[np.ndarray], np.ndarray]


def _parse(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):  # NaN
        return dict(json.loads(text))


class DamagedTableError(ValueError):
    """A file is not a table, is truncated, or has another version."""


class AnnotationTable:
    """The content of an annotation file. Images are numbered from 0 in the order of the file.

    A pickle of it contains only the arguments. Raises DamagedTableError, or OSError.

    Args:
        path: the file of the table; None: it is `stream`.
        min_area: objects with fewer pixels are flagged as SMALL.
        stream: the table in an open file.

    Attributes:
        facts: facts about the annotation file, such as its `hash` and `image_problems`.
        content: the members of the annotation file except images and annotations.
        notes: findings about entries that were not in COCO's notation.
        sizes: the (height, width) of the images, int32 [I, 2]; 0 if unknown.
        flags: the flags of the annotations, uint16 [A].
    """

    def __init__(
        self, path: Path | None, min_area: float = 0, stream: IO[bytes] | None = None
    ) -> None:
        self.path, self.min_area, self._stream = path, min_area, stream
        # Read at byte positions: a failing disk would kill a process with a memory map by SIGBUS.
        self._file = stream or path.open("rb", buffering=0)  # type: ignore[union-attr]
        if stream is None:
            weakref.finalize(self, self._file.close)
        try:
            end = self._file.seek(0, os.SEEK_END) - END.size
            size, version = END.unpack(self._pread(END.size, max(end, 0)))
            if version != VERSION or size > min(end, _MAX_FACTS):
                raise ValueError("another version")
            self.facts: dict[str, Any] = json.loads(self._pread(size, end - size))
            first, self.sizes, self.flags = map(self.column, ("first", "sizes", "flags"))
            # Each process holds it: a smaller type if that has all positions.
            self._first = first.astype(np.int32 if len(self.flags) < 1 << 31 else np.int64)
            self.content: dict[str, Any] = self.facts["content"]
            self.notes = Findings.from_json(self.facts["findings"])
        except OSError:
            raise
        except Exception as error:  # numpy, struct and json raise various errors
            raise DamagedTableError(f"{path}: not an index of this version, or damaged") from error
        if min_area:
            areas = self.column("areas")
            self.flags = self.flags | ((areas > 0) & (areas < min_area)) * np.uint16(Flag.SMALL)

    def __reduce__(self) -> tuple[Any, ...]:
        return AnnotationTable, (self.path, self.min_area)

    def ignoring_below(self, min_area: float) -> "AnnotationTable":
        """Return the table in which objects with fewer pixels are ignored regions."""
        if min_area == self.min_area:
            return self
        return AnnotationTable(self.path, min_area, self._stream)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.sizes)

    def column(self, name: str, first: int = 0, stop: int | None = None) -> np.ndarray:
        """Read rows of a column, see `store.write_table`. Raises DataError."""
        start, kind, shape = self.facts["sections"][name]
        dtype, last = np.dtype(kind), shape[0] if stop is None else stop
        width = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        data = self._pread(width * (last - first), start + width * first)
        if len(data) != width * (last - first):
            raise DataError(self._damaged())
        return np.frombuffer(bytearray(data), dtype).reshape(last - first, *shape[1:])

    def _at(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Read rows of a column."""
        low, stop = (int(indices.min()), int(indices.max()) + 1) if len(indices) else (0, 0)
        return self.column(name, low, stop)[indices - low]

    @property
    def image_ids(self) -> np.ndarray:
        """The ids of the images, int64 [I]."""
        return self.column("image_ids")

    @property
    def keypoint_names(self) -> list[str]:
        return keypoint_names(sorted(self.content["categories"], key=lambda row: row["id"]))

    def image(self, number: int) -> dict[str, Any]:
        """Return the entry of an image; it has a `file_name`."""
        return self.images(np.array([number]))[0]

    def images(self, numbers: np.ndarray) -> list[dict[str, Any]]:
        """Return the entries of images, see `image`."""
        entries, ids = self._load(self._at("images", numbers)), self._at("image_ids", numbers)
        by_url, nameless = self.facts["by_url"], self.facts["nameless"]
        values = zip(entries, ids.tolist(), self.sizes[numbers].tolist(), strict=True)
        for entry, image_id, (height, width) in values:
            if type(entry["id"]) is not int or entry["id"] != image_id:
                entry[WRITTEN_ID] = entry["id"]
            entry |= {"height": height, "width": width, "id": image_id}
            set_file_name(entry, by_url, nameless)
        return entries

    def values(self, name: str, number: int, select: Select) -> np.ndarray:
        """Return the values of a column for selected annotations of an image."""
        first, last = self._first[number : number + 2].tolist()
        return self.column(name, first, last)[select(self.flags[first:last])]

    def counts(self, select: Select = np.ones_like, values: np.ndarray | int = 1) -> np.ndarray:
        """Return the sum of `values` [A] over the selected annotations of each image, int64 [I]."""
        selected = select(self.flags) * values
        sums = np.concatenate([[0], selected.cumsum(dtype=np.int64)])
        return np.diff(sums[self._first])

    @property
    def owners(self) -> np.ndarray:
        """The image of each annotation, int64 [A]; I if unknown."""
        counts = np.diff(self._first, append=len(self.flags))
        return np.repeat(np.arange(len(counts)), counts)

    def selected(self, number: int, select: Select = located) -> np.ndarray:
        """Return the indices of the selected annotations of an image, in file order."""
        first, last = self._first[number : number + 2].tolist()
        return first + np.flatnonzero(select(self.flags[first:last]))

    def rows(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Return judged annotations in COCO's notation.

        Boxes that cannot be used are those of the masks. Annotations without a valid image, and the
        boxes of those without a valid box, are as written.
        """
        positions = indices.astype(self._first.dtype)  # or all of the other array is converted
        numbers = np.searchsorted(self._first, positions, side="right") - 1
        names, rows = ("ids", "category_ids", "areas", "boxes"), []
        columns = [self.flags[indices], self._at("image_ids", numbers.clip(max=len(self) - 1)),
                   *(self._at(name, indices) for name in names)]  # fmt: skip
        texts = self._load(self._at("annotations", indices))
        for row, flag, image_id, own_id, category_id, area, box in zip(
            texts, *(column.tolist() for column in columns), strict=True
        ):
            row.pop(PROBLEM_KEY, None)
            row["id"] = own_id
            if not flag & Flag.UNKNOWN_IMAGE:
                row["image_id"] = image_id
            if not flag & Flag.UNKNOWN_CATEGORY:
                row["category_id"] = category_id
            if area > 0 and row.get("area") != area:
                row["area"] = area
            if box[0] == box[0] and row.get("bbox") != box:
                row["bbox"] = box
            rows.append(row)
        return rows

    def stored(self, number: int, select: Select) -> list[dict[str, Any]]:
        """Return the selected annotations of an image without what `rows` changes.

        It is faster. Masks and keypoints are in COCO's notation.
        """
        return self._load(self.values("annotations", number, select))

    def full_content(self) -> dict[str, Any]:
        """Return the content of the annotation file in COCO's notation, with its findings."""
        in_file_order = np.argsort(self.column("positions"))
        content = {**self.content, "annotations": self.rows(in_file_order)}
        content["images"] = self.images(np.arange(len(self)))
        findings = Findings([*Findings.from_json(self.content.get("findings")), *self.notes])
        for problem in self.facts["image_problems"]:
            findings.add(BAD_ENTRIES, SKIPPED, ": ".join(problem), "image")
        return content | ({"findings": findings.to_json()} if len(findings) else {})

    def bad_annotations(
        self, selection: Selection, limit: int | None = None
    ) -> list[tuple[dict[str, Any], str, str]]:
        """Return the first invalid annotations as written, with their names and problems."""
        positions = self.column("positions")
        bad = np.flatnonzero(selection.bad(self.flags))
        bad = bad[np.argsort(positions[bad])[:limit]]
        described = []
        for index, row in zip(bad, self._load(self.column("annotations")[bad]), strict=True):
            problems = row.pop(PROBLEM_KEY).items()
            refused = [text for flag, text in problems if int(flag) & selection.refused]
            described.append((row, annotation_name(row, int(positions[index])), refused[0]))
        return described

    def problems(self, selection: Selection, limit: int | None = None) -> tuple[list[str], int]:
        """Describe the first invalid entries of images and annotations, and count all of them."""
        of_images = [": ".join(pair) for pair in self.facts["image_problems"]]
        count = len(of_images) + int(selection.bad(self.flags).sum())
        texts = [f"{where}: {text}" for _, where, text in self.bad_annotations(selection, limit)]
        return [*of_images, *texts][:limit], count

    def _load(self, spans: np.ndarray) -> list[dict[str, Any]]:
        """Parse the JSON texts at spans int64 [N, 2] of (start, stop)."""
        try:
            return [*map(_parse, self._texts(spans))]
        except ValueError as error:
            raise DataError(self._damaged()) from error

    def _texts(self, spans: np.ndarray) -> Iterator[bytes]:
        """Read texts; adjacent ones are read together."""
        for group in np.split(spans, range(_TOGETHER, len(spans), _TOGETHER)):
            low, high = (int(group.min()), int(group.max())) if len(group) else (0, 0)
            total = int((group[:, 1] - group[:, 0]).sum())
            data = self._pread(high - low, low) if high - low <= 2 * total else None
            for start, stop in group.tolist():
                if data is None:
                    yield self._pread(stop - start, start)
                else:
                    yield data[start - low : stop - low]

    def _pread(self, size: int, start: int) -> bytes:
        """Read bytes of the file. Raises DataError."""
        try:
            return os.pread(self._file.fileno(), size, start)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _damaged(self) -> str:
        return f"{self.path}: the index is damaged. Delete the file; it will be built again"
