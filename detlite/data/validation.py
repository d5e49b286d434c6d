"""COCO annotation files: read, checked before anything is built on them, and filled in."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as mask_utils

from ..structures.run_lengths import run_lengths
from .errors import DataError

# Annotation tools round outwards, so a box may overhang the image by so much and is clipped;
# by more, it belongs to another image or another scale.
OVERHANG_PIXELS = 2.0
OVERHANG_FRACTION = 0.1  # of the box's own side

_SHOWN = 5  # problems written out in the log; the rest are counted
_logger = logging.getLogger(__name__)


def report(problems: Sequence[str], file: Path, skip: bool) -> None:
    """Logs the problems of a file and how many there are, or unless `skip` raises a DataError."""
    if problems and not skip:
        more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
        raise DataError(
            f"{file}: {problems[0]}{more}; mend the file, or leave such entries out with "
            "DATASETS.ON_BAD_ANNOTATION: skip"
        )
    for problem in problems[:_SHOWN]:
        _logger.warning("%s: skipped: %s", file, problem)
    if problems:
        _logger.warning("%s: skipped %d bad entries in all", file, len(problems))


def read_coco_json(file: Path, by_url: bool = False) -> dict[str, Any]:
    """Reads an annotation file and checks its lists, image entries and category entries.

    With `by_url` pictures are called as `coco_url` ends, where it is given: `val2017/<picture>`.

    Returns:
        The file's content; `annotations` is a list of mappings, not looked into yet, and each of
        `images` has a `file_name`.

    Raises:
        DataError: missing, not JSON, not COCO, or ids of images or categories that occur twice.
    """
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{file}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: is not in COCO form: holds a {type(content).__name__}")
    for key in ("images", "annotations", "categories"):
        rows = content.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            what = "has no" if rows is None else "holds something else than a list of objects as"
            raise DataError(f"{file}: is not in COCO form: {what} {key!r}")
    for image in content["images"]:
        # LVIS v1 has the address alone, which ends in train2017/<picture> or val2017/<picture>.
        if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
            image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    _check_rows(file, content, "images", {"file_name": str, "height": int, "width": int})
    _check_rows(file, content, "categories", {"name": str})
    for row in content["images"]:
        if row["height"] < 1 or row["width"] < 1:
            raise DataError(f"{file}: image {row['id']} has size {row['width']}x{row['height']}")
    return content


def _check_rows(file: Path, content: dict[str, Any], key: str, fields: Mapping[str, type]) -> None:
    if not content[key]:
        raise DataError(f"{file}: is not in COCO form: {key!r} is empty")
    seen = set()
    for position, row in enumerate(content[key]):
        for field, kind in {"id": int, **fields}.items():
            if type(row.get(field)) is not kind:
                raise DataError(
                    f"{file}: is not in COCO form: {key}[{position}] (id {row.get('id')!r}) has "
                    f"{field}: {row.get(field)!r}, not {'an' if kind is int else 'a'} "
                    f"{kind.__name__}"
                )
        if row["id"] in seen:
            raise DataError(f"{file}: the id {row['id']} occurs twice in {key!r}")
        seen.add(row["id"])


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
    segmentation = annotation.get("segmentation")
    if not segmentation:
        return float(annotation["bbox"][2] * annotation["bbox"][3])
    if isinstance(segmentation, dict):
        return float(run_lengths(segmentation["counts"])[1::2].sum())
    rles = mask_utils.frPyObjects(segmentation, height, width)
    return float(mask_utils.area(mask_utils.merge(rles)))


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
            return f"{field} is {annotation.get(field)!r}, not an int"
    if annotation["image_id"] not in sizes:
        return f"image_id {annotation['image_id']} is not in 'images'"
    if annotation["category_id"] not in category_ids:
        return f"category_id {annotation['category_id']} is not declared in 'categories'"
    if annotation.get("iscrowd", 0) not in (0, 1):
        return f"iscrowd is {annotation['iscrowd']!r}, not 0 or 1"
    area = annotation.get("area")
    if area is not None and not (_finite([area]) and area >= 0):
        return f"area is {area!r}, not a number of square pixels"
    height, width = sizes[annotation["image_id"]]
    problem = box_problem(annotation.get("bbox"), height, width)
    if problem is None and masks:
        problem = segmentation_problem(annotation.get("segmentation"), height, width)
    if problem is None and keypoint_count and not annotation.get("iscrowd", 0):
        problem = keypoints_problem(annotation.get("keypoints"), keypoint_count)
    return problem


def box_problem(box: Any, height: int, width: int) -> str | None:
    """What is wrong with a COCO box (x, y, width, height in pixels), or None."""
    if not isinstance(box, list) or len(box) != 4 or not _finite(box):
        return f"bbox is {box!r}, not four finite numbers [x, y, width, height]"
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return f"bbox {box} has width {w} and height {h}: both must be positive"
    if x >= width or y >= height or x + w <= 0 or y + h <= 0:
        return f"bbox {box} lies outside the {width}x{height} image"
    if not _overhangs(x, w, width) and not _overhangs(y, h, height):
        return None
    return (
        f"bbox {box} reaches too far out of the {width}x{height} image: {OVERHANG_PIXELS:g} "
        f"pixels or {OVERHANG_FRACTION:.0%} of its own side are tolerated, and clipped"
    )


def _overhangs(start: float, length: float, limit: int) -> bool:
    return max(-start, start + length - limit) > max(OVERHANG_PIXELS, OVERHANG_FRACTION * length)


def segmentation_problem(segmentation: Any, height: int, width: int) -> str | None:
    """What is wrong with a segmentation (polygons or RLE) of an image of that size, or None."""
    if segmentation is None:
        return "has no segmentation, but MODEL.MASK_ON needs one"
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
    inside = False
    for polygon in polygons:
        if not isinstance(polygon, list) or not _finite(polygon):
            return "segmentation has a polygon that is not a list of finite numbers"
        if len(polygon) < 6 or len(polygon) % 2:
            return (
                f"segmentation has a polygon of {len(polygon)} numbers: x and y of at least "
                "three points are needed"
            )
        xs, ys = polygon[0::2], polygon[1::2]
        inside |= min(xs) < width and min(ys) < height and max(xs) > 0 and max(ys) > 0
    return None if inside else f"segmentation lies outside the {width}x{height} image"


def _finite(values: list[Any]) -> bool:
    try:
        return math.isfinite(math.fsum(values))
    except (TypeError, ValueError, OverflowError):
        return False
