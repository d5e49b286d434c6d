"""The entries of COCO annotation and results files as columns."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from detlite.data.annotations.single import rle_problem
from detlite.files.errors import DataError
from detlite.structures.masks.rle import EncodedMasks

# The bits of `Columns.fields`.
_FIELDS = (
    "image_id", "category_id", "id", "iscrowd", "num_keypoints", "score", "area", "bbox",
    "keypoints", "polygons", "rle", "text", "mask_score",
)  # fmt: skip
_POLYGONS, _RLE, _TEXT = (1 << _FIELDS.index(name) for name in ("polygons", "rle", "text"))
# Bits of `Columns.fields`, polygons, COCO string and (height, width).
_Mask = tuple[int, list[Any], bytes, tuple[int, int]]
_NO_MASK: _Mask = 0, [], b"", (0, 0)
_NOT_IN_COCO_FORM = (TypeError, ValueError, OverflowError, KeyError, AttributeError)


@dataclass(frozen=True, eq=False)
class Columns:
    """The fields of N entries. Missing fields of an entry are 0, or have the length 0."""

    fields: np.ndarray  # int64 [N], see `has`
    integers: np.ndarray  # int64 [N, 5]: image_id, category_id, id, iscrowd, num_keypoints
    numbers: np.ndarray  # float64 [N, 7]: score, area, bbox, mask_score
    sizes: np.ndarray  # int64 [N, 2], (height, width) of the RLE
    text: np.ndarray  # uint8 [V], the concatenated COCO strings of the RLEs
    text_lengths: np.ndarray  # int64 [N]
    corners: np.ndarray  # float64 [W], the concatenated numbers of the polygons
    polygon_lengths: np.ndarray  # int64 [Q], the numbers of each polygon
    polygons: np.ndarray  # int64 [N], the polygons of each entry
    keypoints: np.ndarray  # float64 [U], concatenated
    keypoint_lengths: np.ndarray  # int64 [N], the numbers of each entry

    def __len__(self) -> int:
        return len(self.fields)

    def has(self, field: str) -> np.ndarray:
        """Return bool [N], True for entries that have `field`.

        `field` may also be "polygons" or "rle" for the kind of segmentation, or "text" for an RLE
        that is compressed in the file.
        """
        if field == "segmentation":
            return self.has("polygons") | self.has("rle")
        return self.fields >> _FIELDS.index(field) & 1 > 0

    @property
    def masks(self) -> EncodedMasks:
        return EncodedMasks(self.text, self.text_lengths, self.sizes)


def columns_of(
    rows: Sequence[dict[str, Any]],
    fields: Sequence[str],
    describe: Callable[[int, str], str],
    read_id: Callable[[Any], int] = operator.index,
) -> Columns:
    """Convert fields of entries; null is a missing field.

    Raises DataError with the message `describe(n, field)` for the first value that is not in COCO's
    form, in entry n. `read_id` converts ids of images and categories; the default rejects floats.
    """
    try:
        return _convert(rows, fields, read_id)
    except _NOT_IN_COCO_FORM:
        for number, row in enumerate(rows):
            for field in fields:
                try:
                    _convert([row], [field], read_id)
                except _NOT_IN_COCO_FORM as error:
                    raise DataError(describe(number, field)) from error
        raise


def _convert(
    rows: Sequence[dict[str, Any]], fields: Sequence[str], read_id: Callable[[Any], int]
) -> Columns:
    """Raise one of _NOT_IN_COCO_FORM for other values."""
    flags = np.zeros(len(rows), np.int64)

    def read(field: str, default: Any = 0) -> list[Any]:
        if field not in fields:
            return [default] * len(rows)
        values = [row.get(field) for row in rows]
        known = np.array([x is not None for x in values], bool)
        flags[known] |= 1 << _FIELDS.index(field)
        return values if known.all() else [default if x is None else x for x in values]

    ids = [[*map(read_id, read(field))] for field in ("image_id", "category_id")]
    marks = [read("id"), np.array(read("iscrowd"), bool), read("num_keypoints")]
    numbers = np.array([read("score"), read("area"), read("mask_score")], np.float64).T
    boxes = np.array(read("bbox", [0, 0, 0, 0]), np.float64)
    if rows and (numbers.ndim, boxes.shape) != (2, (len(rows), 4)):
        raise ValueError
    points = read("keypoints", [])
    point_lengths = [len(row) for row in points]
    keypoints = np.array([*chain.from_iterable(points)], np.float64)
    if keypoints.ndim != 1 or any(isinstance(row, str) for row in points):
        raise ValueError
    masks = [_NO_MASK] * len(rows)
    if "segmentation" in fields:
        masks = [_read_mask(row.get("segmentation")) for row in rows]
    kinds, rings, texts, sizes = zip(*masks, strict=True) if masks else [()] * 4
    all_rings = [*chain.from_iterable(rings)]
    return Columns(
        fields=flags | np.array(kinds, np.int64),
        integers=np.array([*ids, *marks], np.int64).T.reshape(-1, 5),
        numbers=np.concatenate([numbers[:, :2], boxes.reshape(-1, 4), numbers[:, 2:]], axis=1),
        sizes=np.array(sizes, np.int64).reshape(-1, 2),
        text=np.frombuffer(bytearray().join(texts), np.uint8),
        text_lengths=np.array([len(text) for text in texts], np.int64),
        corners=np.fromiter(chain.from_iterable(all_rings), np.float64),
        polygon_lengths=np.array([len(ring) for ring in all_rings], np.int64),
        polygons=np.array([len(entry_rings) for entry_rings in rings], np.int64),
        keypoints=keypoints,
        keypoint_lengths=np.array(point_lengths, np.int64),
    )


def _read_mask(mask: Any) -> _Mask:
    if mask is None:
        return _NO_MASK
    if isinstance(mask, list):
        return _POLYGONS, mask, b"", (0, 0)
    counts, (height, width) = mask["counts"], map(operator.index, mask["size"])
    if not 0 < min(height, width) <= max(height, width) < 1 << 31:
        raise ValueError
    if isinstance(counts, list):
        if rle_problem(mask, height, width, may_be_empty=True):
            raise ValueError
        return _RLE, [], rle_codec.frPyObjects(mask, height, width)["counts"], (height, width)
    text = counts if isinstance(counts, bytes) else counts.encode("ascii")
    return _RLE | _TEXT, [], text, (height, width)
