"""What training takes, and yet is worth a look: boxes off their masks, repeats, outliers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detlite.data.datasets.coco_checks import segmentation_problem
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.rle import used_columns

from .inspection_report import Defect, Inspection, Row

# A side of a box may be off its mask's by so much: pixels, and part of the box's own side.
_OFF_PIXELS, _OFF_FRACTION = 3.0, 0.1
# Values are outliers beyond so many spreads of the quartiles (Tukey's "far out"), of logarithms.
_FAR, _LEAST_SPREAD = 3.0, 0.25
_LEAST_VALUES = 20  # of which quartiles say anything


def odd_objects(found: Inspection) -> Iterator[Defect]:
    """Sound annotations that are odd: off their masks, or given twice."""
    twice: set[tuple[Any, ...]] = set()
    for row in found.objects:
        where = f"annotation {row['id']} (image {row['image_id']})"
        mark = (row["image_id"], row["category_id"], *row["bbox"])
        if mark in twice:
            problem = (
                f"an annotation with the same box and category is in this image: {row['bbox']}"
            )
            yield _odd("given twice", where, problem, row)
        twice.add(mark)
        image = found.images[row["image_id"]]
        around = mask_box(row.get("segmentation"), image["height"], image["width"])
        if around is None:
            continue
        x, y, width, height = row["bbox"]
        sides = [
            max(abs(start - mask_start), abs(start + length - mask_start - mask_length))
            - max(_OFF_PIXELS, _OFF_FRACTION * length)
            for start, length, mask_start, mask_length in (
                (x, width, around[0], around[2]), (y, height, around[1], around[3]),
            )
        ]  # fmt: skip
        if max(sides) > 0:
            problem = f"bbox {row['bbox']} is not around its mask, whose box is {around}"
            yield _odd("box off its mask", where, problem, row)


def mask_box(segmentation: Any, height: int, width: int) -> list[int] | None:
    """The box [x, y, width, height] around a mask; None where it is not sound, or empty."""
    if segmentation_problem(segmentation, height, width) is not None:
        return None
    bitmap = to_bitmap(segmentation, height, width)
    columns = used_columns(bitmap)
    rows = used_columns(bitmap[:, columns].T)
    x, y = columns.start, rows.start
    return [x, y, columns.stop - x, rows.stop - y] if columns.stop else None


def _odd(kind: str, where: str, problem: str, row: Row) -> Defect:
    return Defect(kind, where, problem, False, row["image_id"], row["bbox"])


def odd_shapes(found: Inspection) -> Iterator[Defect]:
    """Pictures and boxes whose size or aspect is far from that of the others."""
    images = list(found.images.values())
    sides = [(row["width"], row["height"]) for row in images]
    for index, problem in _outliers(sides):
        where = f"image {images[index]['id']} ({images[index]['file_name']})"
        yield Defect("picture's shape", where, problem, False, images[index]["id"])
    of_category: dict[int, list[Row]] = defaultdict(list)
    for row in found.objects:
        if not row.get("iscrowd", 0):
            of_category[row["category_id"]].append(row)
    names = found.categories
    for category, rows in of_category.items():
        for index, problem in _outliers([tuple(row["bbox"][2:]) for row in rows]):
            row = rows[index]
            where = f"annotation {row['id']} (image {row['image_id']})"
            problem = f"{problem} ({names[category]})"
            yield _odd("box's shape", where, problem, row)


def _outliers(sides: Sequence[tuple[float, ...]]) -> list[tuple[int, str]]:
    """Which of (width, height) are far out in size or aspect, and how."""
    if len(sides) < _LEAST_VALUES:
        return []
    width, height = np.array(sides, np.float64).T
    found = []
    for name, values in (("size", np.sqrt(width * height)), ("aspect", width / height)):
        logs = np.log(values)
        low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
        reach = _FAR * max(high - low, _LEAST_SPREAD)
        for index in np.flatnonzero((logs < low - reach) | (logs > high + reach)).tolist():
            problem = f"{width[index]:g}x{height[index]:g}: its {name} is {values[index]:.3g}, "
            found.append((index, f"{problem}that of most {np.exp(middle):.3g}"))
    return found
