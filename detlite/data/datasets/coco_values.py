"""Read the values of COCO annotation files, which tools write in many notations.

Each reader returns the value in COCO's notation, or the problem that makes it unusable.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from detlite.files.errors import short_repr

# Tools round outwards: a box may exceed the image by 2 pixels or 0.1 of its side without a note.
_OVERHANG_PIXELS, _OVERHANG_FRACTION = 2.0, 0.1
MAX_SPARSE = 25  # pixels of the box of an object of one pixel
_EXACT = 1 << 53  # floats are exact integers up to it

# How values that are not in COCO's notation are read, for the findings.
Note = tuple[str, str]
TEXT: Note = "numbers as text", "They are read as numbers."
CLIPPED: Note = "boxes that exceed their image", "They are clipped to it."
ROTATED: Note = (
    "boxes with attributes.rotation, such as from CVAT",
    "Boxes around the rotated ones are used.",
)
FROM_MASK: Note = "missing or empty boxes with a valid mask", "The tight box of the mask is used."
_UNLABELED: Note = "keypoints without coordinates", "They are not labeled."
_TRIPLES: Note = "keypoints as lists [x, y, visibility]", "They are read as [x1, y1, v1, ...]."


class Reading(NamedTuple):
    """A value in COCO's notation, or what is wrong with it.

    Attributes:
        value: the value that was read; None if there is a problem.
        problem: why it cannot be used.
        note: what was written in another notation, and how it is read; None if as written.
    """

    value: Any = None
    problem: str | None = None
    note: Note | None = None


def unusable(problem: str) -> Reading:
    """Return the reading of a value that cannot be used."""
    return Reading(problem=problem)


def parse_number(value: Any) -> float | None:
    """Return a finite number, also from its text; otherwise None."""
    if isinstance(value, bool):
        return None
    try:
        value = float(value) if isinstance(value, str) else value
        return value if math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def parse_integer(value: Any) -> int | None:
    """Return an integer of 64 bits, also from a text or a float such as 12.0; otherwise None."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = parse_number(value)
    if isinstance(value, float) and not (abs(value) <= _EXACT and value == int(value)):
        return None
    value = parse_number(value)
    return int(value) if value is not None and -(1 << 63) <= value < 1 << 63 else None


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


def read_box(value: Any, height: int, width: int) -> Reading:
    """Read a box (x, y, width, height) in pixels of an image; a far overhang is clipped."""
    box = parse_numbers(parse_if_text(value))
    if box is None or len(box) != 4:
        return unusable(
            f"bbox is {short_repr(value)}, not four finite numbers [x, y, width, height]"
        )
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return unusable(f"bbox {box} has width {w:g} and height {h:g}: both must be positive")
    if 0 <= x <= 1 and 0 <= y <= 1 and w < 1 and h < 1 and min(width, height) > 1:
        return unusable(
            f"bbox {box} is inside the first pixel. Boxes are in pixels: multiply fractions by "
            f"the image size {width}x{height}"
        )
    clipped, far = [], False
    for start, length, limit in ((x, w, width), (y, h, height)):
        low, high = max(start, 0), min(start + length, limit)
        if low >= high:
            return unusable(f"bbox {box} is outside the {width}x{height} image")
        if not np.float32(low) < np.float32(high):  # as in targets
            return unusable(f"bbox {box} has a side of {length}, too short for 32-bit numbers")
        overhang = max(-start, start + length - limit)
        far |= overhang > max(_OVERHANG_PIXELS, _OVERHANG_FRACTION * length)
        clipped.append((low, high - low))
    if far:
        (x, w), (y, h) = clipped
        return Reading([x, y, w, h], note=CLIPPED)
    return Reading(box, note=None if box is value else TEXT)


def read_rotated_box(row: dict[str, Any], height: int, width: int) -> Reading:
    """Read the box of an annotation, rotated about its center by CVAT's `attributes.rotation`.

    The rotation is in degrees; `bbox` is the box before it.
    """
    box, attributes = read_box(row.get("bbox"), height, width), row.get("attributes")
    degrees = parse_number(attributes.get("rotation")) if isinstance(attributes, dict) else None
    if not degrees or box.problem or row.get("segmentation"):
        return box
    x, y, w, h = parse_numbers(parse_if_text(row["bbox"])) or box.value
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    new_w, new_h = w * cos + h * sin, w * sin + h * cos
    rotated = [x + (w - new_w) / 2, y + (h - new_h) / 2, new_w, new_h]
    return read_box(rotated, height, width)._replace(note=ROTATED)


def read_keypoints(value: Any, count: int) -> Reading:
    """Read the keypoints [x1, y1, v1, ...] of an object; all are unlabeled if `value` is empty."""
    value = parse_if_text(value)
    if not value:
        return Reading([0] * 3 * count)
    note = None
    if isinstance(value, list) and all(isinstance(x, list) and len(x) == 3 for x in value):
        value, note = [x for triple in value for x in triple], _TRIPLES
    points = parse_numbers(value)
    if points is None and isinstance(value, list) and len(value) == 3 * count:
        triples = zip(value[::3], value[1::3], value[2::3], strict=True)
        cleared = [[0] * 3 if v is None or v == 0 or v != v else [x, y, v] for x, y, v in triples]
        points, note = parse_numbers([x for triple in cleared for x in triple]), _UNLABELED
    if points is None:
        return unusable("keypoints is not a list of finite numbers")
    if len(points) != 3 * count:
        return unusable(
            f"keypoints has {len(points)} numbers, not x, y and visibility of {count} points"
        )
    if any(v not in (0, 1, 2) for v in points[2::3]):
        return unusable("keypoints has a visibility that is not 0, 1 or 2")
    return Reading(points, note=note or (None if points is value else TEXT))


def is_area(pixels: float, box: Sequence[float], height: int, width: int) -> bool:
    """Return False if the area of an object with a valid box is in another unit than pixels."""
    is_fraction = pixels < 1 and box[2] * box[3] > MAX_SPARSE
    return 0 < pixels <= height * width and not is_fraction


def has_misplaced_keypoints(
    points: Sequence[float], box: Sequence[float], height: int, width: int
) -> bool:
    """Return True if a labeled keypoint is at (0, 0) or outside the image, or none is in the box.

    Args:
        points: (x1, y1, v1, ...) in pixels of an image of the size.
        box: (x, y, width, height) of the object.
    """
    left, top, w, h = box
    triples = zip(points[::3], points[1::3], points[2::3], strict=True)
    labeled = [(x, y) for x, y, visibility in triples if visibility > 0]
    for x, y in labeled:
        if not (-1 <= x <= width and -1 <= y <= height) or x == y == 0:
            return True
    right, bottom = left + w + 1, top + h + 1
    in_box = (left - 1 <= x <= right and top - 1 <= y <= bottom for x, y in labeled)
    return bool(labeled) and not any(in_box)
