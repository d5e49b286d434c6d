"""Read the masks of COCO annotation files, as polygons or RLE; see `coco_values`."""

import ast
import contextlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from detlite.files.errors import short_repr
from detlite.structures.masks.formats import (
    RLE,
    Segmentation,
    encode_bitmap,
    polygons_to_rle,
    to_bitmap,
)
from detlite.structures.masks.rle import run_lengths, tight_bounds

from .coco_values import TEXT, Note, Reading, parse_if_text, parse_integer, parse_numbers, unusable

# Largest distance between the edges of a box and of its mask: pixels, or fraction of the side.
_MAX_PIXELS_OFF, _MAX_FRACTION_OFF = 3.0, 0.1
_POLYGONS: Note = (
    "polygons as pairs of x and y, as lists of x and y, or not in a list of polygons",
    "They are read as [[x1, y1, x2, y2, ...], ...].",
)
_PARTS: Note = (
    "masks with unusable parts, such as polygons of two points",
    "The other parts are used.",
)
_RUNS: Note = "run lengths or sizes that are not integers", "They are read as integers."
_SWAPPED: Note = (
    "run lengths of size [width, height]",
    "They are read so that masks fit their boxes.",
)


def read_segmentation(
    value: Any, height: int, width: int, box: Sequence[float] | None = None
) -> Reading:
    """Read polygons or an RLE of an image; the valid box of the object decides ambiguous cases."""
    parsed = parse_if_text(value)
    reading = _read_mask(parsed, height, width, box)
    if reading.problem:
        return unusable(f"segmentation {reading.problem}")
    return reading if parsed is value else reading._replace(note=reading.note or TEXT)


def _read_mask(value: Any, height: int, width: int, box: Sequence[float] | None) -> Reading:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0] if "counts" in value[0] else value
    if value is None or value in ([], {}, ""):
        return unusable(f"is {'missing' if value is None else 'empty'}")
    if isinstance(value, dict) and "counts" in value:
        return _read_rle(value, height, width, box)
    polygons = _as_polygons(value)
    if polygons is None:
        return unusable(f"is {short_repr(value)}, not polygons or RLE")
    kept, problems, is_inside = [], [], False
    for polygon in polygons:
        values = parse_numbers(polygon)
        if values is None:
            problems.append(f"has the polygon {short_repr(polygon)}, not a list of finite numbers")
            continue
        problem, is_visible = _polygon_problem(values, height, width)
        if problem:
            problems.append(problem)
        else:
            is_inside |= is_visible
            kept.append(values)
    if not is_inside:
        return unusable(f"is outside the {width}x{height} image" if kept else problems[0])
    if problems:
        return Reading(kept, note=_PARTS)
    if polygons is not value:
        return Reading(kept, note=_POLYGONS)
    is_text = any(x is not written for x, written in zip(kept, value, strict=True))
    return Reading(kept, note=TEXT) if is_text else Reading(value)


def segmentation_problem(value: Any, height: int, width: int) -> str | None:
    """Return why a segmentation is not in COCO's notation, or None."""
    mask = read_segmentation(value, height, width)
    return mask.problem or (mask.note and f"segmentation belongs to {mask.note[0]}")


def _as_polygons(value: Any, levels: int = 3) -> list[Any] | None:
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


def _polygon_problem(polygon: list[float], height: int, width: int) -> tuple[str | None, bool]:
    """Return what is wrong with a polygon, and True if it is visible in its image."""
    if len(polygon) < 6 or len(polygon) % 2:
        count = f"has a polygon of {len(polygon)} numbers"
        return f"{count}: x and y of at least three points are needed", False
    x1, x2 = min(polygon[0::2]), max(polygon[0::2])
    y1, y2 = min(polygon[1::2]), max(polygon[1::2])
    if x1 == x2 or y1 == y2:
        return "has a polygon without area", False
    if min(x1, y1) >= 0 and max(x2, y2) <= 1 and max(x2 - x1, y2 - y1) < 1 < min(height, width):
        size = f"{width}x{height}"
        return f"has a polygon inside the first pixel: multiply fractions by the size {size}", False
    longest = max(height, width)
    margin = max(longest, 64)  # of `polygons_to_rle`
    if min(x1, y1) < -margin or max(x2, y2) > longest + margin:
        reach = f"from {min(x1, y1):g} to {max(x2, y2):g}"
        return f"has a polygon {reach}, too far outside the {width}x{height} image", False
    return None, x1 < width and y1 < height and x2 > 0 and y2 > 0


def _read_rle(
    value: Mapping[str, Any], height: int, width: int, box: Sequence[float] | None
) -> Reading:
    rle: RLE = {"size": value.get("size"), "counts": value["counts"]}
    note = None
    if isinstance(rle["counts"], str) and rle["counts"][:2] in ("b'", 'b"'):  # str(bytes)
        with contextlib.suppress(ValueError, SyntaxError):
            rle["counts"], note = ast.literal_eval(rle["counts"]).decode(), TEXT
    for key, row in rle.items():
        if isinstance(row, list) and not all(type(x) is int for x in row):
            rle[key], note = [parse_integer(x) for x in row], _RUNS
    if unswapped := _unswapped(rle, height, width, box):
        return Reading(unswapped, note=_SWAPPED)
    problem = rle_problem(rle, height, width)
    return unusable(problem) if problem else Reading(rle if note else value, note=note)


def _unswapped(rle: RLE, height: int, width: int, box: Sequence[float] | None) -> RLE | None:
    """Read an RLE of size [width, height], with runs along columns or rows as fits the box."""
    swapped = {**rle, "size": [height, width]}
    is_swapped = rle["size"] == [width, height] and height != width
    if not is_swapped or box is None or rle_problem(swapped, height, width):
        return None
    bitmaps = to_bitmap(swapped, height, width), to_bitmap(rle, width, height).T
    fit = [bitmap for bitmap in bitmaps if boxes_match(box, _tight_box(bitmap) or [0] * 4)]
    is_clear = len(fit) == 1 or (fit and (fit[0] == fit[1]).all())
    return encode_bitmap(fit[0]) if is_clear else None


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


def is_quadrilateral(segmentation: Segmentation) -> bool:
    """Return True for a polygon of four corners, such as a box or an oriented box."""
    if not isinstance(segmentation, list) or len(segmentation) != 1:
        return False
    points = segmentation[0]
    return len(points) == 8 or (len(points) == 10 and points[:2] == points[8:])


def mask_box(segmentation: Segmentation, height: int, width: int) -> list[int] | None:
    """Return the tight box [x, y, width, height] of a valid mask; None if it has no pixel."""
    return _tight_box(to_bitmap(segmentation, height, width))


def mask_extent(segmentation: Segmentation, height: int, width: int) -> list[float]:
    """Return the box (x, y, width, height) of a valid mask, of polygons by their corners."""
    if isinstance(segmentation, dict):
        runs = run_lengths(segmentation["counts"])
        ends = runs.cumsum()
        first, last = (ends - runs)[1::2], ends[1::2] - 1
        first, last = first[first <= last], last[first <= last]
        (x1, x2), (y1, y2) = (first[0] // height, last[-1] // height), (0, height - 1)
        if (first // height == last // height).all():
            y1, y2 = (first % height).min(), (last % height).max()
        return [int(x) for x in (x1, y1, x2 - x1 + 1, y2 - y1 + 1)]
    low_high = []
    for start, side in ((0, width), (1, height)):
        values = [value for polygon in segmentation for value in polygon[start::2]]
        low_high.append((max(min(values), 0), min(max(values), side)))
    (x1, x2), (y1, y2) = low_high
    return [x1, y1, x2 - x1, y2 - y1]


def _tight_box(bitmap: np.ndarray) -> list[int] | None:
    left, top, right, bottom = tight_bounds(bitmap)
    return [left, top, right - left, bottom - top] if right else None


def boxes_match(box: Sequence[float], tight: Sequence[float]) -> bool:
    """Return True if all sides of two boxes (x, y, width, height) are near each other."""
    for axis in (0, 1):
        start_off = tight[axis] - box[axis]
        end_off = start_off + tight[axis + 2] - box[axis + 2]
        allowed = max(_MAX_PIXELS_OFF, _MAX_FRACTION_OFF * box[axis + 2])
        if max(abs(start_off), abs(end_off)) > allowed:
            return False
    return True


def annotation_area(segmentation: Any, box: Sequence[float], height: int, width: int) -> float:
    """Return the pixels of a mask, or the area of the box (x, y, width, height) without one."""
    mask = read_segmentation(segmentation, height, width)
    return float(box[2] * box[3]) if mask.problem else mask_area(mask.value, height, width)


def mask_area(segmentation: Segmentation, height: int, width: int) -> float:
    """Return the number of pixels of a valid mask."""
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    return float(rle_codec.area(polygons_to_rle(segmentation, height, width)))
