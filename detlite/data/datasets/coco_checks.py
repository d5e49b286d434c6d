"""Check the content of COCO annotation files, and fill in missing fields."""

import logging
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from pycocotools import mask as mask_utils

from detlite.data.errors import DataError, short_repr
from detlite.structures.masks.formats import polygons_to_rle
from detlite.structures.masks.rle import run_lengths

# Annotation tools round outwards, so a box may exceed the image by this much and is clipped. A box
# that exceeds it by more belongs to another image or another scale.
OVERHANG_PIXELS = 2.0
OVERHANG_FRACTION = 0.1  # of the side of the box
MAX_REPORTED = 5  # problems that are written to the log; the rest are counted
_MAX_LENGTH = 300  # characters of a reported problem
_logger = logging.getLogger(__name__)


def report_problems(problems: Sequence[str], count: int, file: object, skip: bool) -> None:
    """Log the first of `count` problems of a file; without `skip`, raise a DataError instead."""
    texts = [shorten(problem, _MAX_LENGTH) for problem in problems[:MAX_REPORTED]]
    if texts and not skip:
        more = f" (the first of {count} problems)" if count > 1 else ""
        raise DataError(
            f"{file}: {texts[0]}{more}. Fix the file, or skip such entries with "
            "DATASETS.ON_BAD_ANNOTATION: skip"
        )
    for text in texts:
        _logger.warning("%s: skipped: %s", file, text)
    if texts:
        _logger.warning("%s: skipped %d bad entries in total", file, count)


def set_file_name(image: dict[str, Any], by_url: bool) -> dict[str, Any]:
    """Set the `file_name` of an image entry from its `coco_url`, in place, if it has none.

    With `by_url`, `coco_url` takes precedence: LVIS v0.5 has file names without the folder, and
    some that COCO no longer uses.
    """
    # LVIS v1 has only URLs, which end in train2017/<file> or val2017/<file>.
    if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
        image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    return image


def keypoint_names(categories: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keypoint names of the first category that has any; all categories share them."""
    for row in categories:
        names = row.get("keypoints")
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return []


def check_images(
    file: Path, by_url: bool, entries: Iterable[dict[str, Any]]
) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """Check the image entries of an annotation file. Raises DataError.

    Returns:
        Ids int64 [I], sizes int64 [I, 2] of (height, width), and the folders of the images.
    """
    ids, sizes, folders = array("q"), array("q"), set()
    fields = {"file_name": str, "height": int, "width": int}
    named = (set_file_name(entry, by_url) for entry in entries)
    for entry in _checked(file, "images", named, fields):
        ids.append(entry["id"])
        sizes.extend((entry["height"], entry["width"]))
        folders.add(entry["file_name"].rpartition("/")[0])
    return np.array(ids), np.array(sizes).reshape(-1, 2), folders


def check_categories(file: Path, entries: list[dict[str, Any]]) -> None:
    """Check the category entries of an annotation file. Raises DataError."""
    first: dict[str, int] = {}
    for row in _checked(file, "categories", entries, {"name": str}):
        if first.setdefault(row["name"], row["id"]) != row["id"]:
            raise DataError(
                f"{file}: categories {first[row['name']]} and {row['id']} have the same name "
                f"{short_repr(row['name'])}. Results are listed by name, so rename one"
            )


def _checked(
    file: Path, key: str, entries: Iterable[dict[str, Any]], fields: Mapping[str, type]
) -> Iterator[dict[str, Any]]:
    """Yield the entries; raise DataError for a missing field or a repeated id."""
    seen = set()
    for position, row in enumerate(entries):
        for field, kind in {"id": int, **fields}.items():
            value: Any = row.get(field)
            if type(value) is not kind or (isinstance(value, int) and not is_int64(value)):
                raise DataError(
                    f"{file}: not in COCO form: {key}[{position}] "
                    f"(id {short_repr(row.get('id'))}) has {field}: {short_repr(value)}, "
                    f"not {'an' if kind is int else 'a'} {kind.__name__}"
                    f"{' of 64 bits' if type(value) is kind else ''}"
                )
        if row["id"] in seen:
            raise DataError(f"{file}: the id {row['id']} occurs twice in {key!r}")
        seen.add(row["id"])
        yield row
    if not seen:
        raise DataError(f"{file}: not in COCO form: {key!r} is empty")


def is_int64(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def fill_missing(content: dict[str, Any]) -> dict[str, Any]:
    """Fill in the fields that pycocotools needs and many files lack, in place; return `content`.

    These are `info`, `licenses`, and of each annotation `iscrowd` (0) and `area` (of the
    segmentation, or of the box). An annotation with id 0 gets a new id, because the evaluation of
    pycocotools ignores matches with it.
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
    # Without MODEL.MASK_ON, segmentations were not checked.
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
    """Return what is wrong with an annotation, or None.

    `sizes` are (height, width) by image id. Keypoints are checked if there are any.
    """
    for field in ("id", "image_id", "category_id"):
        if type(annotation.get(field)) is not int:
            return f"{field} is {short_repr(annotation.get(field))}, not an int"
        if not is_int64(annotation[field]):
            return f"{field} is {short_repr(annotation[field])}, which exceeds 64 bits"
    if annotation["image_id"] not in sizes:
        return f"image_id {annotation['image_id']} is not in 'images'"
    category_id = annotation["category_id"]
    if category_id not in category_ids:
        low, high = min(category_ids, default="none"), max(category_ids, default="none")
        hint = ". Were they counted from 0?" if category_id == 0 and low == 1 else ""
        return (
            f"category_id {category_id} is not in 'categories', whose ids are {low} to {high}{hint}"
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


def box_problem(box: Any, height: int, width: int) -> str | None:
    """Return what is wrong with a COCO box (x, y, width, height in pixels), or None."""
    if not isinstance(box, list) or len(box) != 4 or not _finite(box):
        return f"bbox is {short_repr(box)}, not four finite numbers [x, y, width, height]"
    x, y, w, h = box
    if w <= 0 or h <= 0:
        return f"bbox {box} has width {w} and height {h}: both must be positive"
    if 0 <= x <= 1 and 0 <= y <= 1 and w < 1 and h < 1 and min(width, height) > 1:
        return (
            f"bbox {box} is inside the first pixel. Boxes are in pixels: multiply fractions by the "
            f"image size {width}x{height}"
        )
    problem = _extent_problem((x, y, x + w, y + h), height, width)
    if problem:
        corners = 0 <= x < w <= width and 0 <= y < h <= height
        hint = ". If these are corners [x1, y1, x2, y2], convert to [x, y, width, height]" * corners
        return f"bbox {box} {problem}{hint}"
    # Targets hold boxes clipped and in float32.
    for start, length, limit in ((x, w, width), (y, h, height)):
        if not np.float32(max(start, 0)) < np.float32(min(start + length, limit)):
            return f"bbox {box} has a side of {length}, too short for 32-bit numbers"
    return None


def _extent_problem(box: tuple[float, float, float, float], height: int, width: int) -> str | None:
    """Return what is wrong with the position of a box (x1, y1, x2, y2), or None."""
    x1, y1, x2, y2 = box
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        return f"is outside the {width}x{height} image"
    for start, end, limit in ((x1, x2, width), (y1, y2, height)):
        if max(-start, end - limit) > max(OVERHANG_PIXELS, OVERHANG_FRACTION * (end - start)):
            return (
                f"exceeds the {width}x{height} image by more than the {OVERHANG_PIXELS:g} pixels "
                f"or {OVERHANG_FRACTION:.0%} of its side that are clipped"
            )
    return None


def segmentation_problem(segmentation: Any, height: int, width: int) -> str | None:
    """Return what is wrong with a segmentation (polygons or RLE) of an image, or None."""
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


def keypoints_problem(keypoints: Any, count: int) -> str | None:
    """Return what is wrong with the keypoints [x1, y1, v1, ...] of an annotation, or None."""
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
            return "segmentation is a single polygon, not a list of polygons: add brackets"
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
