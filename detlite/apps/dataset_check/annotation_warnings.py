"""Warnings about valid but suspicious annotations: wrong boxes, duplicates, outliers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from detlite.data.datasets.coco_masks import (
    boxes_match,
    mask_area,
    mask_box,
    read_segmentation,
)

from .inspection_report import Defect, Inspection, Row

# Tukey's "far out" rule on logarithms: outliers are further from the quartiles than 3 spreads.
_FAR_OUT, _MIN_SPREAD = 3.0, 0.25
_MIN_VALUES = 20  # below this number, quartiles are not meaningful


def object_warnings(
    result: Inspection, progress: Callable[[list[Row], str], Iterable[Row]]
) -> Iterator[Defect]:
    """Yield duplicate annotations, boxes that do not match their masks, and wrong areas."""
    seen: set[tuple[Any, ...]] = set()
    for row in progress(result.objects, "annotations"):
        key = (row["image_id"], row["category_id"], *row["bbox"])
        if key in seen:
            problem = f"the image has another annotation with this category and box: {row['bbox']}"
            yield _warning("duplicate", problem, row)
        seen.add(key)
        image = result.images[row["image_id"]]
        mask = read_segmentation(row.get("segmentation"), image["height"], image["width"])
        area = row["bbox"][2] * row["bbox"][3]
        areas = [area]
        if mask.problem is None:
            tight = mask_box(mask.value, image["height"], image["width"])
            if tight is not None and not boxes_match(row["bbox"], tight):
                problem = f"bbox {row['bbox']} does not match its mask, whose box is {tight}"
                yield _warning("box does not match mask", problem, row)
            areas.append(mask_area(mask.value, image["height"], image["width"]))
        given = row.get("area")
        if given is not None and not min(areas) / 2 <= given <= max(areas) * 2:
            sizes = " and its mask has ".join(f"{area:g}" for area in areas)
            problem = f"area is {given:g}, but its box has {sizes} square pixels: "
            problem += "APs, APm and APl count it with the wrong size"
            yield _warning("area", problem, row)


def _warning(kind: str, problem: str, row: Row) -> Defect:
    where = f"annotation {row['id']} (image {row['image_id']})"
    return Defect(kind, where, problem, False, row["image_id"], row["bbox"])


def shape_warnings(result: Inspection) -> Iterator[Defect]:
    """Yield images, and boxes of each category, with an unusual size or aspect ratio."""
    images = list(result.images.values())
    for index, problem in _outliers([(row["width"], row["height"]) for row in images]):
        where = f"image {images[index]['id']} ({images[index]['file_name']})"
        yield Defect("image shape", where, problem, False, images[index]["id"])
    by_category: dict[int, list[Row]] = defaultdict(list)
    for row in result.objects:
        if not row.get("iscrowd", 0):
            by_category[row["category_id"]].append(row)
    names = result.categories
    for category, rows in by_category.items():
        for index, problem in _outliers([tuple(row["bbox"][2:]) for row in rows]):
            yield _warning("box shape", f"{problem} ({names[category]})", rows[index])


def _outliers(sides: Sequence[tuple[float, ...]]) -> list[tuple[int, str]]:
    """Return (index, explanation) for each unusual size or aspect ratio of (width, height)."""
    if len(sides) < _MIN_VALUES:
        return []
    width, height = np.array(sides, np.float64).T
    outliers = []
    for name, values in (("size", np.sqrt(width * height)), ("aspect", width / height)):
        logs = np.log(values)
        low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
        reach = _FAR_OUT * max(high - low, _MIN_SPREAD)
        for index in np.flatnonzero((logs < low - reach) | (logs > high + reach)).tolist():
            problem = f"{width[index]:g}x{height[index]:g}: the {name} is {values[index]:.3g}, "
            outliers.append((index, f"{problem}the median {np.exp(middle):.3g}"))
    return outliers
