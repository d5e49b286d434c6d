"""Convert annotations in other notations than COCO's into COCO's, without judging the values.

An annotation whose types are COCO's is an `Entry` as it is. Every other one is converted here, so
that the rules of `judge` need to know one notation only.
"""

import ast
import contextlib
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from detlite.files.errors import short_repr

from .ids import parse_integer, parse_number
from .selection import Flag

# Text that says what was written in another notation, and how it is read.
Note = tuple[str, str]
TEXT: Note = "numbers as text", "They are read as numbers."
ROTATED: Note = (
    "boxes with attributes.rotation, such as from CVAT",
    "Boxes around the rotated ones are used.",
)
_UNLABELED: Note = "keypoints without coordinates", "They are not labeled."
_TRIPLES: Note = "keypoints as lists [x, y, visibility]", "They are read as [x1, y1, v1, ...]."
_POLYGONS: Note = (
    "polygons as pairs of x and y, as lists of x and y, or not in a list of polygons",
    "They are read as [[x1, y1, x2, y2, ...], ...].",
)
_RUNS: Note = "run lengths or sizes that are not integers", "They are read as integers."

_Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_NO_BOX = (math.nan,) * 4
_BYTES = ("b'", 'b"')  # the start of str(bytes)
_LEVELS = 3  # to which lists of polygons may be nested


class Rle(Struct, gc=False):
    """Run lengths of a mask, compressed or not; `size` is (height, width)."""

    counts: str | list[_Int64]
    size: tuple[_Int64, _Int64]


class _Attributes(Struct, gc=False):
    rotation: float = 0


class Entry(Struct, gc=False):
    """An annotation in COCO's types. Ids are as written; a missing box is NaN."""

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
        changes: fields of `row` in COCO's notation.
        notes: what was written in another notation, by field.
        problems: fields that have no notation at all, by flag.
        parts: the polygons that are no lists of numbers, by position.
    """

    row: dict[str, Any]
    entry: Entry
    changes: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    problems: dict[Flag, str] = field(default_factory=dict)
    parts: dict[int, str] = field(default_factory=dict)


def is_other_notation(entry: Entry) -> bool:
    """Return True for values in COCO's types that have another meaning in another notation."""
    mask, attributes = entry.segmentation, entry.attributes
    if isinstance(mask, Rle):
        return isinstance(mask.counts, str) and mask.counts[:2] in _BYTES
    if mask:
        return len(mask) > 2 and len(mask[0]) == 2  # points
    return attributes is not None and attributes.rotation != 0


def normalize(row: dict[str, Any]) -> Odd:
    """Convert an annotation."""
    entry = Entry(row.get("image_id"), row.get("category_id"), _NO_BOX)  # type: ignore[arg-type]
    entry.id = parse_integer(row["id"]) if type(row.get("id")) is int else None
    odd = Odd(row, entry)
    _read_marks(odd)
    for key in ("image_id", "category_id"):
        if isinstance(row.get(key), str):
            odd.notes[key] = TEXT
    if row.get("area") is not None:
        entry.area = parse_number(row["area"]) or 0.0
        if isinstance(row["area"], str) and entry.area > 0:
            odd.notes["area"] = TEXT
    entry.num_keypoints = parse_integer(row.get("num_keypoints"))
    if type(row.get("num_keypoints", 0)) is not int:
        odd.changes["num_keypoints"] = entry.num_keypoints
    for key, read in (("segmentation", _mask), ("bbox", _box), ("keypoints", _keypoints)):
        value, note = read(row.get(key), odd)
        setattr(entry, key, value)
        if note is not None:
            odd.notes[key], odd.changes[key] = note, _plain(value)
    return odd


def _plain(value: Any) -> Any:
    return {"size": [*value.size], "counts": value.counts} if isinstance(value, Rle) else value


def _read_marks(odd: Odd) -> None:
    row = odd.row
    written = row.get("iscrowd", row.get("isCrowd"))
    crowd, ignore = (
        {"true": 1, "false": 0}.get(str(value).lower(), parse_integer(value))
        for value in (written or 0, row.get("ignore") or 0)
    )
    odd.entry.ignore = 1 if ignore == 1 else 0
    if crowd not in (0, 1):
        odd.problems[Flag.BAD_CROWD] = f"iscrowd is {short_repr(written)}, not 0 or 1"
        return
    odd.entry.iscrowd = 1 if crowd else 0
    if crowd != row.get("iscrowd", 0) or type(row.get("iscrowd", 0)) is not int:
        odd.changes["iscrowd"] = crowd


def parse_numbers(values: Any) -> list[float] | None:
    """Return a list of finite numbers, also from their texts; the list itself if it has them."""
    if not isinstance(values, list):
        return None
    if not set(map(type, values)) <= {int, float}:
        parsed = [parse_number(value) for value in values]
        return None if None in parsed else parsed  # type: ignore[return-value]
    try:
        return values if all(map(math.isfinite, values)) else None
    except OverflowError:  # a large integer
        return None


def parse_if_text(value: Any) -> Any:
    """Parse a list or object that was written as text; return everything else unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
    return value


def _box(value: Any, odd: Odd) -> tuple[Any, Note | None]:
    """Return the box [x, y, width, height], rotated about its center by CVAT's rotation."""
    box = parse_numbers(parse_if_text(value))
    if box is None or len(box) != 4:
        odd.problems[Flag.BAD_BOX] = (
            f"bbox is {short_repr(value)}, not four finite numbers [x, y, width, height]"
        )
        return _NO_BOX, None
    attributes = odd.row.get("attributes")
    degrees = parse_number(attributes.get("rotation")) if isinstance(attributes, dict) else None
    x, y, w, h = box
    if not degrees or min(w, h) <= 0 or odd.row.get("segmentation"):
        return box, None if box is value else TEXT
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    new_w, new_h = w * cos + h * sin, w * sin + h * cos
    odd.changes["attributes"] = {**attributes, "rotation": 0}  # type: ignore[dict-item]
    return [x + (w - new_w) / 2, y + (h - new_h) / 2, new_w, new_h], ROTATED


def _keypoints(value: Any, odd: Odd) -> tuple[Any, Note | None]:
    """Return the keypoints [x1, y1, v1, ...]."""
    points = parse_if_text(value)
    if not points:
        return None, None
    note = None
    if isinstance(points, list) and all(isinstance(x, list) and len(x) == 3 for x in points):
        points, note = [x for triple in points for x in triple], _TRIPLES
    numbers = parse_numbers(points)
    if numbers is None and isinstance(points, list) and len(points) % 3 == 0:
        triples = zip(points[::3], points[1::3], points[2::3], strict=True)
        cleared = [[0] * 3 if v is None or v == 0 or v != v else [x, y, v] for x, y, v in triples]
        numbers, note = parse_numbers([x for triple in cleared for x in triple]), _UNLABELED
    if numbers is None:
        odd.problems[Flag.BAD_KEYPOINTS] = "keypoints is not a list of finite numbers"
        return None, None
    return numbers, note or (None if numbers is value else TEXT)


def _mask(written: Any, odd: Odd) -> tuple[Any, Note | None]:
    """Return polygons or run lengths. A polygon that is no list of numbers becomes empty."""
    value = parsed = parse_if_text(written)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0] if "counts" in value[0] else value
    if value is None or value in ([], {}, ""):
        return None, None
    if isinstance(value, dict) and "counts" in value:
        mask, note = _rle(value)
        is_other = parsed is not written or value is not parsed
        if is_other and note is None:
            odd.changes["segmentation"] = _plain(mask)
        return mask, note or (TEXT if parsed is not written else None)
    polygons = _as_polygons(value)
    if polygons is None:
        odd.problems[Flag.BAD_MASK] = f"segmentation is {short_repr(value)}, not polygons or RLE"
        return None, None
    numbers = []
    for k, polygon in enumerate(polygons):
        values = parse_numbers(polygon)
        if values is None:
            text = f"has the polygon {short_repr(polygon)}, not a list of finite numbers"
            odd.parts[k] = f"segmentation {text}"
        numbers.append([] if values is None else values)
    if polygons is not value:
        return numbers, _POLYGONS
    is_text = parsed is not written or any(
        x is not y
        for k, (x, y) in enumerate(zip(numbers, value, strict=True))
        if k not in odd.parts
    )
    return numbers, TEXT if is_text else None


def _rle(value: Mapping[str, Any]) -> tuple[Rle, Note | None]:
    counts, size, note = value["counts"], value.get("size"), None
    if isinstance(counts, str) and counts[:2] in _BYTES:
        with contextlib.suppress(ValueError, SyntaxError):
            counts, note = ast.literal_eval(counts).decode(), TEXT
    if isinstance(counts, list) and not all(type(x) is int for x in counts):
        counts, note = [parse_integer(x) for x in counts], _RUNS
    if isinstance(size, list) and not all(type(x) is int for x in size):
        size, note = [parse_integer(x) for x in size], _RUNS
    if not isinstance(size, list) or len(size) != 2 or None in map(parse_integer, size):
        size = [-1, -1]
    if not isinstance(counts, str) and (
        not isinstance(counts, list) or None in map(parse_integer, counts)
    ):
        counts = [-1]  # no run lengths
    return Rle(counts, (size[0], size[1])), note


def _as_polygons(value: Any, levels: int = _LEVELS) -> list[Any] | None:
    """Return polygons in any notation as [[x1, y1, ...], ...]; `value` itself if it is that.

    A polygon may be a list of numbers, of points [x, y] or {x, y}, or an object with a list of x
    and a list of y. Lists of polygons may be nested, at most `levels` deep.
    """
    if isinstance(value, dict):
        for keys in (("x", "y"), ("all_points_x", "all_points_y")):
            xs, ys = (value.get(key) for key in keys)
            if isinstance(xs, list) and isinstance(ys, list) and len(xs) == len(ys):
                return [[x for pair in zip(xs, ys, strict=True) for x in pair]]
        return None
    if not isinstance(value, list):
        return None
    if {list, dict}.isdisjoint(map(type, value)):
        return [value]
    if len(value) > 2 and all(_point(part) for part in value):
        return [[x for part in value for x in _point(part) or ()]]
    if levels == 0:
        return None
    polygons = [polygon for part in value for polygon in _as_polygons(part, levels - 1) or [part]]
    standard = len(polygons) == len(value) and all(map(operator.is_, polygons, value))
    return value if standard else polygons


def _point(value: Any) -> list[Any] | None:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):  # of OpenCV
        return _point(value[0])
    if isinstance(value, dict) and "x" in value and "y" in value:
        return [value["x"], value["y"]]
    flat = isinstance(value, list) and len(value) == 2
    return value if flat and not any(isinstance(x, (list, dict)) for x in value) else None
