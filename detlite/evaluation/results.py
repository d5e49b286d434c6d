"""Results: detections of a dataset as a few arrays, and as entries of COCO results files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from pycocotools import mask as rle_codec

from detlite.data.annotations.ids import Ids, parse_integer
from detlite.data.annotations.scan import to_json, without_gc
from detlite.distributed import gather_objects, is_main
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import read_json
from detlite.files.reading import read_file
from detlite.structures.masks.rle import EncodedMasks, join_strings
from detlite.structures.object_fields import object_field

_MAX_BYTES = 1 << 32  # of a results file
_ROWS_PER_WRITE = 1000  # results converted to text at a time
# IoU type -> field of a COCO result
IOU_TYPES = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
_EXAMPLE = (
    '{"image_id": 17, "category_id": 1, "score": 0.9, "bbox": [x, y, width, height], '
    '"segmentation": {"size": [480, 640], "counts": "PYY5..."}, "keypoints": [x1, y1, v1, ...]}'
)


@dataclass(frozen=True, eq=False)
class Results:
    """N detections of one image or of a dataset, in coordinates of the original images."""

    image_ids: np.ndarray  # int64 [N]
    category_ids: np.ndarray  # int64 [N], ids of the dataset
    scores: np.ndarray  # float [N]
    boxes: np.ndarray | None = None  # float [N, 4], xywh in pixels, if known
    masks: EncodedMasks | None = None  # each of the size of its image, if predicted
    keypoints: np.ndarray | None = None  # float [N, P, 3] of (x, y, 1) in pixel indices
    fields: dict[str, np.ndarray] = field(default_factory=dict)  # own fields [N, ...] by name

    @classmethod
    def from_coco(
        cls,
        source: Path | Sequence[Mapping[str, Any]],
        iou_types: Sequence[str] = ("bbox",),
        images: Ids | None = None,
        categories: Ids | None = None,
    ) -> Results:
        """Read a COCO results file or its entries.

        Entries are dicts of image_id, category_id, score, and for each of `iou_types` bbox (xywh),
        segmentation (RLE) or keypoints [x1, y1, v1, ...]; other fields are ignored. Arrays are
        read like lists.

        Args:
            source: the file, or a list of entries.
            iou_types: the fields to read.
            images, categories: the ids of the ground truth, which may be written as texts; None:
                the entries have integers.

        Raises:
            DataError: names the first entry that is not in COCO's results format.
        """
        entries = _read_entries(source, iou_types)
        image_ids = _read_ids(entries, "image_id", images)
        category_ids = _read_ids(entries, "category_id", categories)
        scores = np.fromiter((entry.score for entry in entries), np.float64, len(entries))
        boxes = masks = keypoints = None
        if "segm" in iou_types:
            rles = [entry.segmentation for entry in entries]
            sizes = np.array([rle.size for rle in rles], np.int64).reshape(-1, 2)
            masks = EncodedMasks(*join_strings([rle.counts for rle in rles]), sizes)
            without = [n for n, entry in enumerate(entries) if entry.bbox is None]
            if "bbox" in iou_types and without:
                check_masks(masks)
                for n in without:
                    entries[n].bbox = rle_codec.toBbox(next(masks.rles(n, n + 1))).tolist()
        if "bbox" in iou_types:
            # Converts tuples twice as fast as np.array.
            found = chain.from_iterable(entry.bbox for entry in entries)
            boxes = np.fromiter(found, np.float64, 4 * len(entries)).reshape(-1, 4)
        if "keypoints" in iou_types:
            count = len(entries[0].keypoints) // 3 if entries else 0
            for n, entry in enumerate(entries):
                if len(entry.keypoints) != 3 * count:
                    points = short_repr(entry.keypoints)
                    raise DataError(
                        f"result {n}: keypoints is {points}, not {3 * count} numbers, three for "
                        "each keypoint"
                    )
            rows = np.array([entry.keypoints for entry in entries], np.float64)
            keypoints = rows.reshape(len(entries), count, 3)
        return cls(image_ids, category_ids, scores, boxes, masks, keypoints)

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, index: np.ndarray) -> Results:
        """Return the detections at `index`, int64 [M]."""
        columns: dict[str, Any] = {k: x for k, x in vars(self).items() if x is not None}
        own = {name: column[index] for name, column in columns.pop("fields").items()}
        return replace(self, fields=own, **{name: x[index] for name, x in columns.items()})

    def to_coco(self, first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the detections `first:last` as entries of a COCO results file."""
        chunk = slice(first, last)
        columns: dict[str, Sequence[Any] | Iterator[Any]] = {
            "image_id": self.image_ids[chunk].tolist(),
            "category_id": self.category_ids[chunk].tolist(),
            "score": self.scores[chunk].tolist(),
        }
        if self.boxes is not None:
            columns["bbox"] = self.boxes[chunk].tolist()
        if self.masks is not None:
            columns["segmentation"] = self.masks.rles(first, last)
        if self.keypoints is not None:
            points = self.keypoints[chunk]
            columns["keypoints"] = points.reshape(len(points), 3 * points.shape[1]).tolist()
        for name, own in self.fields.items():
            columns[name] = map(object_field(name).write, torch.from_numpy(own[chunk]))
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


_Side = Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]


class _Rle(msgspec.Struct, gc=False):
    size: tuple[_Side, _Side]
    counts: Annotated[str, msgspec.Meta(pattern="^[ -~]*$")]


_Box = tuple[float, float, float, float]


def _entry_type(iou_types: Sequence[str], id_type: Any) -> type[Any]:
    """Return the struct of the entries that `iou_types` need; their other fields are not read."""
    fields: list[tuple[Any, ...]]
    fields = [("image_id", id_type), ("category_id", id_type), ("score", float)]
    if "segm" in iou_types:  # a missing box is the box of the mask, as in pycocotools
        fields += [("segmentation", _Rle), ("bbox", _Box | None, None)]
    elif "bbox" in iou_types:
        fields += [("bbox", _Box)]
    if "keypoints" in iou_types:
        fields.insert(3, ("keypoints", list[float]))
    return msgspec.defstruct("Entry", fields, gc=False)


@without_gc()
def _read_entries(
    source: Path | Sequence[Mapping[str, Any]], iou_types: Sequence[str]
) -> list[Any]:
    integers: Any = _entry_type(iou_types, int)
    with contextlib.suppress(msgspec.MsgspecError, OSError):
        text = read_file(source, _MAX_BYTES) if isinstance(source, Path) else to_json(source)
        return msgspec.json.decode(text, type=list[integers])
    # Ids of the ground truth, JSON that only Python reads, or errors that name the entry.
    rows = read_json(source) if isinstance(source, Path) else json.loads(to_json(source))
    entry_type, entries = _entry_type(iou_types, int | float | str), []
    if not isinstance(rows, list):
        raise DataError(f"a list of COCO results is needed, such as [{_EXAMPLE}]")
    for n, row in enumerate(rows):
        try:
            entries.append(msgspec.convert(row, entry_type))
        except msgspec.ValidationError as error:
            problem = str(error).replace(" - at `$", ": at `$")
            raise DataError(
                f"result {n} is not in COCO's results format ({problem}): {short_repr(row)}. "
                f"A result is, for example, {_EXAMPLE}"
            ) from error
    return entries


def _read_ids(entries: Sequence[Any], field: str, ids: Ids | None) -> np.ndarray:
    """Return ids int64 [N]. Integers that `ids` does not have are left to `check_results`."""
    values = [getattr(entry, field) for entry in entries]
    if {*map(type, values)} <= {int}:
        with contextlib.suppress(OverflowError):
            return np.fromiter(values, np.int64, len(values))
    for n, value in enumerate(values):
        number = ids.number(value) if ids and type(value) is not int else parse_integer(value)
        if number is None or (ids is None and isinstance(value, str)):
            problem = f"{field} is {short_repr(value)}, not an id of the ground truth"
            raise DataError(f"result {n}: {problem}")
        values[n] = number
    return np.array(values, np.int64)


def check_masks(masks: EncodedMasks) -> None:
    """Raise DataError if run lengths do not cover their image."""
    if (n := first_true(masks.areas < 0)) is not None:
        raise DataError(f"result {n}: the run lengths of its mask do not cover its image")


def in_range(values: np.ndarray) -> np.ndarray:
    """Return which of N entries [N, ...] have only values that float32 can represent, bool [N].

    NaN and infinity are not in range. The areas of larger boxes would be infinite.
    """
    valid = np.abs(values) <= np.finfo(np.float32).max
    return np.asarray(valid.all(axis=tuple(range(1, valid.ndim))))


def first_true(values: np.ndarray) -> int | None:
    """Return the index of the first True in bool [N], if any."""
    return int(values.argmax()) if values.any() else None


def gather_results(parts: Sequence[Results]) -> Results | None:
    """Concatenate the results of all images and processes on rank 0; None in other processes.

    Every process calls it with the results of its images. They are ordered by rank.
    """
    gathered = gather_objects([] if is_main() else [concatenate_results(parts)])
    return None if gathered is None else concatenate_results([*parts, *chain(*gathered)])


def concatenate_results(parts: Sequence[Results]) -> Results:
    """Concatenate results of the same fields; results without detections may lack some."""
    parts = [part for part in parts if len(part)]
    return concatenate_arrays(parts) if parts else Results.from_coco([], ())


def concatenate_arrays(parts: Sequence[Any]) -> Any:
    """Concatenate arrays, or each entry of dicts and dataclasses of them; None if they are None."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, dict):
        return {name: concatenate_arrays([part[name] for part in parts]) for name in first}
    columns = ([getattr(part, field.name) for part in parts] for field in fields(first))
    return type(first)(*map(concatenate_arrays, columns))


def write_results(results: Results, file: Path) -> None:
    """Write results atomically as a COCO results file, which pycocotools' `loadRes` reads."""
    with atomic_open(file) as stream:
        for first in range(0, max(len(results), 1), _ROWS_PER_WRITE):
            text = json.dumps(list(results.to_coco(first, first + _ROWS_PER_WRITE)))
            stream.write((", " if first else "[") + text[1:-1])
        stream.write("]")
