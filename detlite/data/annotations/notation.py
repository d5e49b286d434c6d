"""Convert annotations in other notations than COCO's into COCO's, without judging the values.

An annotation whose types are COCO's is an `Entry` without changes. Every other one is converted
here, so that the rules of `judge` need to know one notation only.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.formats import Segmentation

from .ids import is_id, parse_integer, parse_number

Row = dict[str, Any]
# Text that says what was written in another notation, and how it is read.
Note = tuple[str, str]
TEXT: Note = "numbers as text", "They are read as numbers."
ROTATED: Note = "boxes with attributes.rotation", "Boxes around the rotated ones are used."
_POLYGONS: Note = "polygons as pairs or not in a list", "They are read as [[x1, y1, x2, ...], ...]."
_RUNS: Note = "run lengths in a list, or not of integers", "They are read as integers."

_Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_NO_BOX = (math.nan,) * 4
_LEVELS = 3  # to which lists of polygons may be nested


class Rle(Struct, gc=False):
    """Run lengths of a mask, compressed or not; `size` is (height, width)."""

    counts: str | list[_Int64]
    size: tuple[_Int64, _Int64]


class _Attributes(Struct, gc=False):
    rotation: float = 0


class Entry(Struct, gc=False):
    """An annotation in COCO's types. Ids are as written; a missing box is NaN.

    Values that have no notation at all are one polygon or one keypoint without numbers, or
    `iscrowd` -1.
    """

    image_id: _Int64
    category_id: _Int64
    bbox: tuple[float, float, float, float]
    id: _Int64 | str | float | None = None
    iscrowd: Literal[0, 1] = 0
    ignore: Literal[0, 1] = 0
    area: float | None = None
    segmentation: list[list[float]] | Rle | None = None
    keypoints: list[float] | None = None
    num_keypoints: _Int64 | None = None
    attributes: _Attributes | None = None
    isCrowd: None = None


@dataclass
class Odd:
    """An annotation that was converted to COCO's notation.

    Attributes:
        row: the annotation as written.
        entry: its values in COCO's types.
        stored: the annotation in COCO's notation.
        notes: what was written in another notation, by field.
    """

    row: Row
    entry: Entry
    stored: Row
    notes: dict[str, Note] = field(default_factory=dict)

    def use(self, key: str, value: Any, note: Note) -> None:
        """Use a value of a field, and note it if it is not the one that is written."""
        setattr(self.entry, key, Rle(**value) if isinstance(value, dict) else value)
        if str(value) != str(self.row.get(key)):
            self.stored[key], self.notes[key] = value, note


def parse_row(file: object, key: str, position: int, text: Any) -> Row:
    """Parse an entry of the list `key` of a file. Raises DataError."""
    row = json.loads(bytes(text))
    if not isinstance(row, dict):
        raise DataError(
            f"{file}: not in COCO format: {key!r} must be a list of objects, but entry {position} "
            f"is {short_repr(row)}"
        )
    return row


def is_other_notation(entry: Entry) -> bool:
    """Return True for values in COCO's types that have another meaning in another notation."""
    mask, attributes = entry.segmentation, entry.attributes
    if isinstance(mask, list) and mask:
        return len(mask) > 2 and len(mask[0]) == 2  # points
    return attributes is not None and attributes.rotation != 0


def segmentation_of(entry: Entry) -> Segmentation:
    """Return the mask of an annotation in COCO's form."""
    mask = entry.segmentation
    return {"size": [*mask.size], "counts": mask.counts} if isinstance(mask, Rle) else mask or []


def normalize(row: Row) -> Odd:
    """Convert an annotation."""
    ids = (row.get(key) if is_id(row.get(key)) else None for key in ("image_id", "category_id"))
    entry = Entry(next(ids), next(ids), _NO_BOX)  # type: ignore[arg-type]
    odd = Odd(row, entry, {**row})
    entry.id = parse_integer(row["id"]) if type(row.get("id")) is int else None
    odd.notes = {key: TEXT for key in ("image_id", "category_id") if isinstance(row.get(key), str)}
    crowd, ignore = _mark(row.get("iscrowd", row.get("isCrowd"))), _mark(row.get("ignore"))
    entry.ignore = 1 if ignore == 1 else 0
    entry.iscrowd = crowd if crowd in (0, 1) else -1  # type: ignore[assignment]
    if crowd in (0, 1):
        odd.stored["iscrowd"] = crowd
    if row.get("area") is not None:
        entry.area = parse_number(row["area"]) or 0.0
        if isinstance(row["area"], str) and entry.area > 0:
            odd.notes["area"] = TEXT
    entry.num_keypoints = parse_integer(row.get("num_keypoints"))
    if "num_keypoints" in row:
        odd.stored["num_keypoints"] = entry.num_keypoints
    _read_mask(odd)
    _read_box(odd)
    if points := row.get("keypoints"):
        numbers, entry.keypoints = parse_numbers(points), [math.nan]
        if numbers is not None:
            odd.use("keypoints", numbers, TEXT)
    return odd


def _mark(value: Any) -> int | None:
    return {"true": 1, "false": 0}.get(str(value).lower(), parse_integer(value or 0))


def parse_numbers(values: Any) -> list[float] | None:
    """Return a list of finite numbers, also from their texts; None for everything else."""
    numbers = [parse_number(value) for value in values] if isinstance(values, list) else [None]
    return None if None in numbers else numbers  # type: ignore[return-value]


def _read_box(odd: Odd) -> None:
    """Read the box [x, y, width, height], rotated about its center by CVAT's rotation."""
    box, attributes = parse_numbers(odd.row.get("bbox")), odd.row.get("attributes")
    if box is None or len(box) != 4:
        return
    odd.use("bbox", box, TEXT)
    degrees = parse_number(attributes.get("rotation")) if isinstance(attributes, dict) else None
    x, y, w, h = box
    if degrees and min(w, h) > 0 and not odd.row.get("segmentation"):
        cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
        new_w, new_h = w * cos + h * sin, w * sin + h * cos
        odd.use("bbox", [x + (w - new_w) / 2, y + (h - new_h) / 2, new_w, new_h], ROTATED)
        odd.stored["attributes"] = {**attributes, "rotation": 0}  # type: ignore[dict-item]


def _read_mask(odd: Odd) -> None:
    """Read polygons or run lengths. A polygon that is no list of numbers becomes empty."""
    value = odd.row.get("segmentation")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
    if isinstance(value, dict) and "counts" in value:
        counts, size = value["counts"], _integers(value.get("size"))
        counts = counts if isinstance(counts, str) else _integers(counts)
        own = {"size": size if len(size) == 2 else [-1, -1], "counts": counts or [-1]}
        odd.entry.segmentation = Rle(**own)  # type: ignore[arg-type]  # -1: no sizes or runs
        if counts and len(size) == 2:
            odd.use("segmentation", {key: own[key] for key in value if key in own}, _RUNS)
    elif value:
        polygons = _as_polygons(value)
        numbers = [parse_numbers(polygon) or [] for polygon in polygons]
        odd.use("segmentation", numbers, TEXT if polygons == value else _POLYGONS)


def _integers(values: Any) -> list[int]:
    """Return a list of integers, also from their texts; [] for everything else."""
    numbers = [parse_integer(value) for value in values] if isinstance(values, list) else [None]
    return [] if None in numbers else numbers  # type: ignore[return-value]


def _as_polygons(value: Any, levels: int = _LEVELS) -> list[Any]:
    """Return polygons in any notation as [[x1, y1, ...], ...].

    A polygon may be a list of numbers or of points [x, y]. Lists of polygons may be nested, at most
    `levels` deep.
    """
    if not isinstance(value, list) or not any(isinstance(part, list) for part in value):
        return [value]
    points = [_point(part) for part in value]
    if len(points) > 2 and all(points):
        return [[x for point in points for x in point]]
    if levels == 0:
        return value
    lists = (_as_polygons(part, levels - 1) if isinstance(part, list) else [part] for part in value)
    return [polygon for polygons in lists for polygon in polygons]


def _point(value: Any) -> list[Any]:
    """Return a point [x, y]; OpenCV has it in a further list. [] for everything else."""
    if isinstance(value, list) and len(value) == 1:
        return _point(value[0])
    is_flat = isinstance(value, list) and not any(isinstance(x, list) for x in value)
    return value if is_flat and len(value) == 2 else []
