"""Results: detections of a dataset as a few arrays, and as entries of COCO results files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from detlite.distributed import gather_objects, is_main
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.rle import EncodedMasks

from .reading.columns import Columns, columns_of

_ROWS_PER_WRITE = 1000  # results converted to text at a time
# IoU type -> field of a COCO result
IOU_TYPES = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
_REQUIRED = ("image_id", "category_id", "score")
_EXPECTED_MASK = "an RLE with a size [height, width]"
_EXPECTED = {
    "image_id": "an id", "category_id": "an id", "score": "a number", "bbox": "4 numbers",
    "segmentation": _EXPECTED_MASK, "keypoints": "a list of numbers", "mask_score": "a number",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Results:
    """N detections of one image or of a dataset, in coordinates of the original images."""

    image_ids: np.ndarray  # int64 [N]
    category_ids: np.ndarray  # int64 [N], ids of the dataset
    scores: np.ndarray  # float [N]
    boxes: np.ndarray | None = None  # float [N, 4], xywh in pixels, if known
    masks: EncodedMasks | None = None  # each of the size of its image, if predicted
    keypoints: np.ndarray | None = None  # float [N, P, 3] of (x, y, 1) in pixel indices
    mask_scores: np.ndarray | None = None  # float [N], which rank the masks; None: `scores`

    @classmethod
    def from_coco(
        cls, rows: Sequence[dict[str, Any]], iou_types: Sequence[str] = ("bbox",)
    ) -> Results:
        """Convert the entries of a COCO results file; DataError if one is invalid.

        Entries are dicts of image_id, category_id, score, and for each of `iou_types` bbox (xywh),
        segmentation (RLE) or keypoints [x1, y1, v1, ...]. The mask_score of entries with
        a segmentation is optional; other fields are ignored.
        """

        def describe(n: int, field: str) -> str:
            expected = _EXPECTED[field]
            return f"result {n}: {field} is {short_repr(rows[n][field])}, not {expected}"

        fields = [*_REQUIRED, *(IOU_TYPES[kind] for kind in iou_types if kind in IOU_TYPES)]
        fields += ["mask_score"] * ("segm" in iou_types)
        return cls.from_columns(columns_of(rows, fields, describe), iou_types)

    @classmethod
    def from_columns(cls, columns: Columns, iou_types: Sequence[str]) -> Results:
        """Convert the fields that `iou_types` need; DataError if an entry lacks one."""
        for field in [*_REQUIRED, *(IOU_TYPES[kind] for kind in iou_types if kind in IOU_TYPES)]:
            if (n := first_true(~columns.has(field))) is not None:
                raise DataError(f"result {n} has no {field!r}")
        if "segm" in iou_types and (n := first_true(~columns.has("rle"))) is not None:
            raise DataError(f"result {n}: segmentation is polygons, not {_EXPECTED_MASK}")
        scores, mask_scores, scored = columns.numbers[:, 0], None, columns.has("mask_score")
        if "segm" in iou_types and scored.any():
            mask_scores = np.where(scored, columns.numbers[:, 6], scores)
        return cls(
            image_ids=columns.integers[:, 0],
            category_ids=columns.integers[:, 1],
            scores=scores,
            boxes=columns.numbers[:, 2:6] if "bbox" in iou_types else None,
            masks=columns.masks if "segm" in iou_types else None,
            keypoints=_keypoints(columns) if "keypoints" in iou_types else None,
            mask_scores=mask_scores,
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    def ranking(self, iou_type: str) -> np.ndarray:
        """Return the scores float [N] that rank the detections in the evaluation of an IoU type."""
        return self.scores if iou_type != "segm" or self.mask_scores is None else self.mask_scores

    def to_coco(self, first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the detections `first:last` as entries of a COCO results file.

        Without boxes, `score` is the mask score, so that other programs rank the masks by it.
        """
        chunk = slice(first, last)
        columns: dict[str, Sequence[Any] | Iterator[Any]] = {
            "image_id": self.image_ids[chunk].tolist(),
            "category_id": self.category_ids[chunk].tolist(),
            "score": self.ranking("segm" if self.boxes is None else "bbox")[chunk].tolist(),
        }
        if self.boxes is not None:
            columns["bbox"] = self.boxes[chunk].tolist()
        if self.masks is not None:
            columns["segmentation"] = self.masks.rles(first, last)
        if self.mask_scores is not None and self.boxes is not None:
            columns["mask_score"] = self.mask_scores[chunk].tolist()
        if self.keypoints is not None:
            points = self.keypoints[chunk]
            columns["keypoints"] = points.reshape(len(points), 3 * points.shape[1]).tolist()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _keypoints(columns: Columns) -> np.ndarray:
    """Return the keypoints [N, P, 3]; DataError if entries have different numbers of them."""
    lengths, ends = columns.keypoint_lengths, columns.keypoint_lengths.cumsum()
    count = int(lengths[0]) // 3 if len(lengths) else 0
    if (n := first_true(lengths != 3 * count)) is not None:
        points = short_repr(columns.keypoints[ends[n] - lengths[n] : ends[n]].tolist())
        raise DataError(
            f"result {n}: keypoints is {points}, not {3 * count} numbers, three for each keypoint"
        )
    return columns.keypoints.reshape(len(lengths), count, 3)


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
    sent = [] if is_main() else [concatenate_results(parts)]
    gathered = gather_objects(sent)
    return None if gathered is None else concatenate_results([*parts, *chain(*gathered)])


def concatenate_results(parts: Sequence[Results]) -> Results:
    """Concatenate results of the same fields; results without detections may lack some."""
    parts = [part for part in parts if len(part)]
    return concatenate_arrays(parts) if parts else Results.from_coco([], ())


def concatenate_arrays(parts: Sequence[Any]) -> Any:
    """Concatenate arrays, or each field of dataclasses of arrays; None if they are None."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    columns = ([getattr(part, field.name) for part in parts] for field in fields(first))
    return type(first)(*map(concatenate_arrays, columns))


def write_results(results: Results, file: Path) -> None:
    """Write results atomically as a COCO results file, which pycocotools' `loadRes` reads."""
    with atomic_open(file) as stream:
        for first in range(0, max(len(results), 1), _ROWS_PER_WRITE):
            text = json.dumps(list(results.to_coco(first, first + _ROWS_PER_WRITE)))
            stream.write((", " if first else "[") + text[1:-1])
        stream.write("]")
