"""Read the values of COCO annotation files, which tools write in many notations.

Each reader returns the value in COCO's notation, or the problem that makes it unusable.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as mask_utils

from detlite.data.errors import short_repr
from detlite.structures.masks.formats import (
    Segmentation,
    encode_bitmap,
    polygons_to_rle,
    to_bitmap,
)
from detlite.structures.masks.rle import run_lengths, used_columns

# Tools round outwards: a box may exceed the image by 2 pixels or 0.1 of its side without a note.
_OVERHANG_PIXELS, _OVERHANG_FRACTION = 2.0, 0.1
# How far a side of a box may be from its mask.
_MAX_PIXELS_OFF, _MAX_FRACTION_OFF = 3.0, 0.1
_EXACT = 1 << 53  # floats are exact integers up to it

TEXT = "numbers as text"
CLIPPED = "boxes that exceed their image"
FROM_MASK = "boxes that are missing or have no area, with a valid mask"
POLYGONS = "polygons as pairs of x and y, as lists of x and y, or not in a list of polygons"
PARTS = "masks with unusable parts, such as polygons of two points"
RUNS = "run lengths or sizes of masks that are not written as integers"
SWAPPED = "run lengths whose size is [width, height]"
TRIPLES = "keypoints as lists [x, y, visibility]"
EFFECTS = {
    TEXT: "They are read as numbers.",
    CLIPPED: "They are clipped to it.",
    FROM_MASK: "The tight box of the mask is used.",
    POLYGONS: "They are read as [[x1, y1, x2, y2, ...], ...].",
    PARTS: "The other parts are used.",
    RUNS: "They are read as integers.",
    SWAPPED: "They are read so that the mask fits its box.",
    TRIPLES: "They are read as [x1, y1, v1, x2, ...].",
}


class Reading(NamedTuple):
    """A value in COCO's notation, or what is wrong with it.

    Attributes:
        value: the value that was read; None if there is a problem.
        problem: why it cannot be used.
        note: the key of EFFECTS for how it was read; None if as written.
    """

    value: Any = None
    problem: str | None = None
    note: str | None = None


def _refuse(problem: str) -> Reading:
    return Reading(problem=problem)


def number(value: Any) -> float | None:
    """Return a finite number, also from its text; otherwise None."""
    if isinstance(value, bool):
        return None
    try:
        value = float(value) if isinstance(value, str) else value
        return value if math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def integer(value: Any) -> int | None:
    """Return an integer of 64 bits, also from a text or a float such as 12.0; otherwise None."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = number(value)
    if isinstance(value, float) and not (abs(value) <= _EXACT and value == int(value)):
        return None
    value = number(value)
    return int(value) if value is not None and -(1 << 63) <= value < 1 << 63 else None


def numbers(values: Any) -> list[float] | None:
    """Return a list of finite numbers, also from their texts; the list itself if it has them."""
    if not isinstance(values, list):
        return None
    if not set(map(type, values)) <= {int, float}:
        parsed = [number(value) for value in values]
        return None if None in parsed else parsed  # type: ignore[return-value]
    try:
        return values if all(map(math.isfinite, values)) else None
    except OverflowError:  # a large integer
        return None


def _parsed(value: Any) -> Any:
    """Parse a list or object that was written as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
    return value


def read_box(value: Any, height: int, width: int) -> Reading:
    """Read a box (x, y, width, height) in pixels of an image; a far overhang is clipped."""
    box = numbers(_parsed(value))
    if box is None or len(box) != 4:
        return _refuse(
            f"bbox is {short_repr(value)}, not four finite numbers [x, y, width, height]"
        )
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return _refuse(f"bbox {box} has width {w:g} and height {h:g}: both must be positive")
    if 0 <= x <= 1 and 0 <= y <= 1 and w < 1 and h < 1 and min(width, height) > 1:
        return _refuse(
            f"bbox {box} is inside the first pixel. Boxes are in pixels: multiply fractions by the "
            f"image size {width}x{height}"
        )
    clipped, far = [], False
    for start, length, limit in ((x, w, width), (y, h, height)):
        low, high = max(start, 0), min(start + length, limit)
        if low >= high:
            return _refuse(f"bbox {box} is outside the {width}x{height} image")
        if not np.float32(low) < np.float32(high):  # as in targets
            return _refuse(f"bbox {box} has a side of {length}, too short for 32-bit numbers")
        overhang = max(-start, start + length - limit)
        far |= overhang > max(_OVERHANG_PIXELS, _OVERHANG_FRACTION * length)
        clipped.append((low, high - low))
    if far:
        (x, w), (y, h) = clipped
        return Reading([x, y, w, h], note=CLIPPED)
    return Reading(box, note=None if box is value else TEXT)


def read_segmentation(
    value: Any, height: int, width: int, box: Sequence[float] | None = None
) -> Reading:
    """Read polygons or an RLE of an image; the valid box of the object decides ambiguous cases."""
    parsed = _parsed(value)
    reading = _read_mask(parsed, height, width, box)
    is_text = parsed is not value and reading.problem is None
    return Reading(reading.value, None, reading.note or TEXT) if is_text else reading


def _read_mask(value: Any, height: int, width: int, box: Sequence[float] | None) -> Reading:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0] if "counts" in value[0] else value
    if value is None or value in ([], {}, ""):
        return _refuse(f"segmentation is {'missing' if value is None else 'empty'}")
    if isinstance(value, dict) and "counts" in value:
        return _read_rle(value, height, width, box)
    polygons = _as_polygons(value)
    if polygons is None:
        return _refuse(f"segmentation is {short_repr(value)}, not polygons or RLE")
    kept, problems, is_text, inside = [], [], False, False
    for polygon in polygons:
        values = numbers(polygon)
        problem, visible = _polygon_problem(values, height, width)
        if problem:
            problems.append(problem)
        else:
            inside |= visible
            is_text |= values is not polygon
            kept.append(values)
    if not inside:
        problem = f"is outside the {width}x{height} image" if kept else problems[0]
        return _refuse(f"segmentation {problem}")
    if problems:
        return Reading(kept, note=PARTS)
    if polygons is not value:
        return Reading(kept, note=POLYGONS)
    return Reading(kept if is_text else value, note=TEXT if is_text else None)


def segmentation_problem(value: Any, height: int, width: int) -> str | None:
    """Return why a segmentation is not in COCO's notation, or None."""
    mask = read_segmentation(value, height, width)
    return mask.problem or (mask.note and f"segmentation belongs to {mask.note}")


def _as_polygons(value: Any) -> list[Any] | None:
    """Return the polygons of any notation, as lists of their values; the value itself if standard.

    A list that is not one polygon in a list has one meaning: numbers in turn, points [x, y] or
    {x, y}; or an object with the lists of x and of y.
    """
    if isinstance(value, dict):
        for keys in (("x", "y"), ("all_points_x", "all_points_y")):
            xs, ys = (value.get(key) for key in keys)
            if isinstance(xs, list) and isinstance(ys, list) and len(xs) == len(ys):
                return [[one for pair in zip(xs, ys, strict=True) for one in pair]]
        return None
    if not isinstance(value, list):
        return None
    if not any(isinstance(part, (list, dict)) for part in value):
        return [value]
    if len(value) > 2 and all(_point(part) for part in value):
        return [[one for part in value for one in _point(part) or ()]]
    if any(isinstance(part, list) and part and _point(part[0]) for part in value):
        return [
            [one for point in part for one in _point(point) or (None,)]
            if isinstance(part, list)
            else part
            for part in value
        ]
    return value


def _point(value: Any) -> list[Any] | None:
    if isinstance(value, dict) and "x" in value and "y" in value:
        return [value["x"], value["y"]]
    flat = isinstance(value, list) and len(value) == 2
    return value if flat and not any(isinstance(one, (list, dict)) for one in value) else None


def _polygon_problem(
    polygon: list[float] | None, height: int, width: int
) -> tuple[str | None, bool]:
    """Return what is wrong with a polygon, and True if it is visible in its image."""
    if polygon is None:
        return "has a polygon that is not a list of finite numbers", False
    if len(polygon) < 6 or len(polygon) % 2:
        count = f"has a polygon of {len(polygon)} numbers"
        return f"{count}: x and y of at least three points are needed", False
    x1, x2 = min(polygon[0::2]), max(polygon[0::2])
    y1, y2 = min(polygon[1::2]), max(polygon[1::2])
    if x1 == x2 or y1 == y2:
        return "has a polygon without area", False
    longest = max(height, width)
    margin = max(longest, 64)  # of `polygons_to_rle`
    if min(x1, y1) < -margin or max(x2, y2) > longest + margin:
        reach = f"from {min(x1, y1):g} to {max(x2, y2):g}"
        return f"has a polygon {reach}, too far outside the {width}x{height} image", False
    return None, x1 < width and y1 < height and x2 > 0 and y2 > 0


def _read_rle(
    value: Mapping[str, Any], height: int, width: int, box: Sequence[float] | None
) -> Reading:
    rle, note = {"size": value.get("size"), "counts": value["counts"]}, None
    for key, row in rle.items():
        if isinstance(row, list) and not all(type(one) is int for one in row):
            rle[key], note = [integer(one) for one in row], RUNS
    if rle["size"] == [width, height] and height != width:
        return _read_swapped(rle, height, width, box)
    problem = rle_problem(rle, height, width)
    if problem:
        return _refuse(f"segmentation {problem}")
    return Reading(rle if note else value, note=note)


def _read_swapped(
    rle: dict[str, Any], height: int, width: int, box: Sequence[float] | None
) -> Reading:
    """Read an RLE of size [width, height], whose runs go along columns or along rows.

    The box of the object tells which.
    """
    swapped = {**rle, "size": [height, width]}
    problem = rle_problem(swapped, height, width)
    if problem is None and box is not None:
        bitmaps = to_bitmap(swapped, height, width), to_bitmap(rle, width, height).T
        fit = [bitmap for bitmap in bitmaps if boxes_match(box, _tight_box(bitmap) or [0] * 4)]
        if len(fit) == 1 or (fit and (fit[0] == fit[1]).all()):
            return Reading(encode_bitmap(fit[0]), note=SWAPPED)
    problem = problem or f"has size {rle['size']} [height, width], its image [{height}, {width}]"
    return _refuse(f"segmentation {problem}")


def rle_problem(
    rle: Mapping[str, Any], height: int, width: int, may_be_empty: bool = False
) -> str | None:
    """Return what is wrong with an RLE (compressed or not) of an image, or None."""
    counts: Any = rle.get("counts")
    if rle.get("size") != [height, width]:
        return f"has size {rle.get('size')} [height, width], its image [{height}, {width}]"
    invalid = "has RLE counts that are not run lengths"
    integers = isinstance(counts, list) and all(type(run) is int for run in counts)
    if not integers and not isinstance(counts, str):
        return invalid
    try:
        # pycocotools does not check strings and may write outside its memory.
        runs = run_lengths(counts)
    except (ValueError, OverflowError):
        return invalid
    if (runs < 0).any():
        return invalid
    covered = runs.sum(dtype=np.float64)  # cannot overflow
    if covered != height * width:
        return f"has RLE counts over {covered:.0f} of {height * width} pixels"
    # Runs alternate, background first.
    return None if may_be_empty or runs[1::2].any() else "is empty: no pixel is set"


def mask_box(segmentation: Segmentation, height: int, width: int) -> list[int] | None:
    """Return the tight box [x, y, width, height] of a valid mask; None if it has no pixel."""
    return _tight_box(to_bitmap(segmentation, height, width))


def _tight_box(bitmap: np.ndarray) -> list[int] | None:
    columns = used_columns(bitmap)
    rows = used_columns(bitmap[:, columns].T)
    x, y = columns.start, rows.start
    return [x, y, columns.stop - x, rows.stop - y] if columns.stop else None


def boxes_match(box: Sequence[float], tight: Sequence[float]) -> bool:
    """Return True if all sides of two boxes (x, y, width, height) are near each other."""
    for axis in (0, 1):
        start, length = box[axis], box[axis + 2]
        end, tight_end = start + length, tight[axis] + tight[axis + 2]
        off = max(abs(start - tight[axis]), abs(end - tight_end))
        if off > max(_MAX_PIXELS_OFF, _MAX_FRACTION_OFF * length):
            return False
    return True


def read_keypoints(value: Any, count: int) -> Reading:
    """Read the keypoints [x1, y1, v1, ...] of an object; without any, none of them is labeled."""
    value = _parsed(value)
    if not value:
        return Reading([0] * 3 * count)
    note = None
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 3 for one in value):
        value, note = [one for triple in value for one in triple], TRIPLES
    points = numbers(value)
    if points is None:
        return _refuse("keypoints is not a list of finite numbers")
    if len(points) != 3 * count:
        return _refuse(
            f"keypoints has {len(points)} numbers, not x, y and visibility of {count} points"
        )
    if any(v not in (0, 1, 2) for v in points[2::3]):
        return _refuse("keypoints has a visibility that is not 0, 1 or 2")
    return Reading(points, note=note or (None if points is value else TEXT))


def keypoint_names(categories: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keypoint names of the first category that has any; all categories share them."""
    for row in categories:
        names = row.get("keypoints")
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return []


def fill_missing(content: dict[str, Any]) -> dict[str, Any]:
    """Fill in the fields that pycocotools needs and many files lack, in place; return `content`.

    These are `info`, `licenses`, `iscrowd`, and `area` of the segmentation or of the box. Id 0 is
    replaced, because the evaluation of pycocotools ignores matches with it.
    """
    content.setdefault("info", {})
    content.setdefault("licenses", [])
    sizes = {row["id"]: (row["height"], row["width"]) for row in content["images"]}
    free_id = max((row["id"] for row in content["annotations"]), default=0) + 1
    for row in content["annotations"]:
        row["iscrowd"] = row.get("iscrowd") or 0
        if row["id"] == 0:
            row["id"] = free_id
        if row.get("area") is None:
            size = sizes[row["image_id"]]
            mask = read_segmentation(row.get("segmentation"), *size)
            if mask.problem:
                row["area"] = float(row["bbox"][2] * row["bbox"][3])
            else:
                row["area"] = mask_area(mask.value, *size)
    return content


def mask_area(segmentation: Segmentation, height: int, width: int) -> float:
    """Return the number of pixels of a valid mask."""
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    return float(mask_utils.area(polygons_to_rle(segmentation, height, width)))
