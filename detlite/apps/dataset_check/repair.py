"""A copy of an annotation file without what training refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

from detlite.data.datasets.coco_checks import annotation_problem, box_problem

from .annotation_warnings import mask_box
from .inspection import rows_of
from .inspection_report import Inspection, Row


def mend(found: Inspection) -> tuple[Row, Counter[str]]:
    """Mends what can be mended without a guess, and leaves out the rest.

    A box that is refused is drawn anew around a sound mask, boxes are clipped to their pictures,
    an id that occurs twice is replaced, and an annotation that is given twice is left out. So is
    what else training refuses: annotations, and pictures with all of theirs.

    Returns:
        The content of the new file, and how often each of these was done.
    """
    done: Counter[str] = Counter()
    broken = {defect.image_id for defect in found.refused if defect.kind == "picture"}
    sizes = {number: size for number, size in found.sizes.items() if number not in broken}
    done["pictures left out"] = len(rows_of(found.content, "images")) - len(sizes)
    category_ids = set(found.categories)
    rows = rows_of(found.content, "annotations")
    used = {row["id"] for row in rows if type(row.get("id")) is int}
    free = max(used, default=0) + 1
    seen: set[int] = set()
    marks: set[tuple[Any, ...]] = set()
    kept: list[Row] = []
    for given in rows:
        row = dict(given)
        size = sizes.get(row["image_id"]) if type(row.get("image_id")) is int else None
        redrawn = size is not None and _redraw(row, *size)
        if annotation_problem(row, sizes, category_ids, found.masks, found.keypoints):
            done["annotations left out"] += 1
            continue
        assert size is not None
        mark = (row["image_id"], row["category_id"], *row["bbox"])
        if mark in marks:
            done["annotations given twice left out"] += 1
            continue
        marks.add(mark)
        if row["id"] in seen:
            row["id"], free = free, free + 1
            done["ids replaced"] += 1
        seen.add(row["id"])
        done["boxes drawn anew around their masks"] += redrawn
        done["boxes clipped"] += _clip(row, *size)
        kept.append(row)
    images = [row for number, row in found.images.items() if number in sizes]
    return {
        **found.content,
        "images": images,
        "annotations": kept,
        "categories": found.category_rows,
    }, done


def _redraw(row: Row, height: int, width: int) -> bool:
    """Draws a refused box around the mask; whether it did."""
    if box_problem(row.get("bbox"), height, width) is None:
        return False
    around = mask_box(row.get("segmentation"), height, width)
    if around is not None:
        row["bbox"] = around
    return around is not None


def _clip(row: Row, height: int, width: int) -> bool:
    """Clips the box to its picture; whether that changed it."""
    x, y, w, h = row["bbox"]
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
    if x >= 0 and y >= 0 and x + w <= width and y + h <= height:
        return False
    row["bbox"] = [x1, y1, x2 - x1, y2 - y1]
    return True
