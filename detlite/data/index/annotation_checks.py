"""COCO annotations: checked before anything is built on them, and filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as mask_utils

from detlite.data.errors import short_repr
from detlite.structures.masks.formats import polygons_to_rle
from detlite.structures.masks.rle import run_lengths

# Annotation tools round outwards, so a box may overhang the image by so much and is clipped;
# by more, it belongs to another image or another scale.
OVERHANG_PIXELS = 2.0
OVERHANG_FRACTION = 0.1  # of the box's own side


def fill_missing(content: dict[str, Any]) -> dict[str, Any]:
    """Fills in place what pycocotools needs and many writers leave out; returns `content`.

    `info`, `licenses`, and of each annotation `iscrowd` (0) and `area` (that of the segmentation,
    or of the box). An annotation with id 0 gets a new id, because pycocotools' evaluation takes
    a match with it for none. The other fields must be sound.
    """
    content.setdefault("info", {})
    content.setdefault("licenses", [])
    sizes = {row["id"]: (row["height"], row["width"]) for row in content["images"]}
    free_id = max((row["id"] for row in content["annotations"]), default=0) + 1
    for row in content["annotations"]:
        row.setdefault("iscrowd", 0)
        if row["id"] == 0:
            row["id"] = free_id
        if row.get("area") is None:
            row["area"] = _area(row, *sizes[row["image_id"]])
    return content


def _area(annotation: dict[str, Any], height: int, width: int) -> float:
    segmentation: Any = annotation.get("segmentation")
    # Without MODEL.MASK_ON nobody looked at it.
    if segmentation_problem(segmentation, height, width) is not None:
        return float(annotation["bbox"][2] * annotation["bbox"][3])
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    return float(mask_utils.area(polygons_to_rle(segmentation, height, width)))


def annotation_problem(
    annotation: Mapping[str, Any],
    sizes: Mapping[int, tuple[int, int]],
    category_ids: set[int],
    masks: bool,
    keypoint_count: int,
) -> str | None:
    """What is wrong with an annotation, or None.

    `sizes` has the (height, width) of every image by id. With a `keypoint_count` of 0 keypoints do
    not matter.
    """
    for field in ("id", "image_id", "category_id"):
        if type(annotation.get(field)) is not int:
            return f"{field} is {short_repr(annotation.get(field))}, not an int"
        if not is_long(annotation[field]):
            return f"{field} is {short_repr(annotation[field])}, which 64 bits do not hold"
    if annotation["image_id"] not in sizes:
        return f"image_id {annotation['image_id']} is not in 'images'"
    if annotation["category_id"] not in category_ids:
        low, high = min(category_ids, default="none"), max(category_ids, default="none")
        from_0 = "; was it counted from 0?" if annotation["category_id"] == 0 and low == 1 else ""
        return (
            f"category_id {annotation['category_id']} is not declared in 'categories', whose ids "
            f"are from {low} to {high}{from_0}"
        )
    if annotation.get("iscrowd", 0) not in (0, 1):
        return f"iscrowd is {short_repr(annotation['iscrowd'])}, not 0 or 1"
    area = annotation.get("area")
    if area is not None and not (_finite([area]) and area >= 0):
        return f"area is {short_repr(area)}, not a number of square pixels"
    height, width = sizes[annotation["image_id"]]
    problem = box_problem(annotation.get("bbox"), height, width)
    if problem is None and masks:
        problem = segmentation_problem(annotation.get("segmentation"), height, width)
    if problem is None and keypoint_count and not annotation.get("iscrowd", 0):
        problem = keypoints_problem(annotation.get("keypoints"), keypoint_count)
    return problem


def is_long(value: int) -> bool:
    """Whether a signed integer of 64 bits holds it, as ids are kept."""
    return -(1 << 63) <= value < 1 << 63


def box_problem(box: Any, height: int, width: int) -> str | None:
    """What is wrong with a COCO box (x, y, width, height in pixels), or None."""
    if not isinstance(box, list) or len(box) != 4 or not _finite(box):
        return f"bbox is {short_repr(box)}, not four finite numbers [x, y, width, height]"
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return f"bbox {box} has width {w} and height {h}: both must be positive"
    if 0 <= x <= 1 and 0 <= y <= 1 and w < 1 and h < 1 and min(width, height) > 1:
        return (
            f"bbox {box} lies within the first pixel: boxes count pixels, so multiply fractions "
            f"by the {width}x{height} of the image"
        )
    problem = _extent_problem((x, y, x + w, y + h), height, width)
    if problem:
        corners = 0 <= x < w <= width and 0 <= y < h <= height
        hint = "; if these are corners [x1, y1, x2, y2], it must be [x, y, width, height]" * corners
        return f"bbox {box} {problem}{hint}"
    # As targets hold them: clipped, in float32.
    for start, length, limit in ((x, w, width), (y, h, height)):
        if not np.float32(max(start, 0)) < np.float32(min(start + length, limit)):
            return f"bbox {box} has a side that is too short for 32-bit numbers: {length}"
    return None


def _extent_problem(box: tuple[float, float, float, float], height: int, width: int) -> str | None:
    """What is wrong with where a box (x1, y1, x2, y2) lies, or None."""
    x1, y1, x2, y2 = box
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        return f"lies outside the {width}x{height} image"
    if not _overhangs(x1, x2, width) and not _overhangs(y1, y2, height):
        return None
    return (
        f"reaches too far out of the {width}x{height} image: {OVERHANG_PIXELS:g} pixels or "
        f"{OVERHANG_FRACTION:.0%} of its own side are tolerated, and clipped"
    )


def _overhangs(start: float, end: float, limit: int) -> bool:
    return max(-start, end - limit) > max(OVERHANG_PIXELS, OVERHANG_FRACTION * (end - start))


def segmentation_problem(segmentation: Any, height: int, width: int) -> str | None:
    """What is wrong with a segmentation (polygons or RLE) of an image of that size, or None."""
    if segmentation is None:
        return "has no segmentation, but MODEL.MASK_ON needs one (set it False to train on boxes)"
    if isinstance(segmentation, list):
        return _polygon_problem(segmentation, height, width)
    if not isinstance(segmentation, dict):
        return f"segmentation is a {type(segmentation).__name__}, not polygons or RLE"
    problem = rle_problem(segmentation, height, width)
    return None if problem is None else f"segmentation {problem}"


def rle_problem(
    rle: Mapping[str, Any], height: int, width: int, may_be_empty: bool = False
) -> str | None:
    """What is wrong with an RLE (compressed or not) of an image of that size, or None."""
    counts: Any = rle.get("counts")
    if rle.get("size") != [height, width]:
        return f"has size {rle.get('size')} [height, width], its image [{height}, {width}]"
    unsound = "has RLE counts that are not run lengths"
    whole = isinstance(counts, list) and all(type(run) is int for run in counts)
    if not whole and not isinstance(counts, str):
        return unsound
    try:
        # pycocotools trusts a string, to the point of writing outside its memory.
        runs = run_lengths(counts)
    except (ValueError, OverflowError):
        return unsound
    if (runs < 0).any():
        return unsound
    covered = runs.sum(dtype=np.float64)  # cannot overflow
    if covered != height * width:
        return f"has RLE counts over {covered:.0f} of {height * width} pixels"
    # Runs alternate, background first.
    return None if may_be_empty or runs[1::2].any() else "is empty: no pixel is set"


def keypoints_problem(keypoints: Any, count: int) -> str | None:
    """What is wrong with the keypoints [x1, y1, v1, ...] of an annotation, or None."""
    if keypoints is None:
        return "has no keypoints, but MODEL.KEYPOINT_ON needs them"
    if not isinstance(keypoints, list) or not _finite(keypoints):
        return "keypoints is not a list of finite numbers"
    if len(keypoints) != 3 * count:
        return f"keypoints has {len(keypoints)} numbers, not x, y and visibility of {count} points"
    if any(v not in (0, 1, 2) for v in keypoints[2::3]):
        return "keypoints has a visibility that is not 0, 1 or 2"
    return None


def _polygon_problem(polygons: list[Any], height: int, width: int) -> str | None:
    if not polygons:
        return "segmentation is empty: []"
    for polygon in polygons:
        if isinstance(polygon, (int, float)):
            return "segmentation is not a list of polygons, but one itself: put it in brackets"
        if not isinstance(polygon, list) or not _finite(polygon):
            return "segmentation has a polygon that is not a list of finite numbers"
        if len(polygon) < 6 or len(polygon) % 2:
            return (
                f"segmentation has a polygon of {len(polygon)} numbers: x and y of at least "
                "three points are needed"
            )
    xs = [x for polygon in polygons for x in polygon[0::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    problem = _extent_problem((min(xs), min(ys), max(xs), max(ys)), height, width)
    return f"segmentation {problem}" if problem else None


def _finite(values: list[Any]) -> bool:
    try:
        return math.isfinite(math.fsum(values))
    except (TypeError, ValueError, OverflowError):
        return False
