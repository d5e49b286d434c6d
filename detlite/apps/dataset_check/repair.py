"""Repair an annotation file by removing or fixing what training refuses."""

from collections import Counter
from typing import Any

from detlite.data.datasets.coco_checks import annotation_problem, box_problem

from .annotation_warnings import mask_box
from .inspection import rows_of
from .inspection_report import Inspection, Row


def repair(inspection: Inspection) -> tuple[Row, Counter[str]]:
    """Return a repaired copy of an annotation file.

    Fixes what needs no guess: an invalid box becomes the tight box of its valid mask, boxes are
    clipped to their images, and repeated ids are replaced. Removes duplicates and whatever else
    training refuses: annotations, and images with all of their annotations.

    Returns:
        The content of the new file, and the number of changes of each kind.
    """
    counts: Counter[str] = Counter()
    broken = {defect.image_id for defect in inspection.refused if defect.kind == "image"}
    sizes = {key: size for key, size in inspection.sizes.items() if key not in broken}
    counts["images removed"] = len(rows_of(inspection.content, "images")) - len(sizes)
    category_ids = set(inspection.categories)
    rows = rows_of(inspection.content, "annotations")
    next_id = max((row["id"] for row in rows if type(row.get("id")) is int), default=0) + 1
    ids: set[int] = set()
    unique: set[tuple[Any, ...]] = set()
    kept: list[Row] = []
    for original in rows:
        row = dict(original)
        size = sizes.get(row["image_id"]) if type(row.get("image_id")) is int else None
        redrawn = size is not None and _box_from_mask(row, *size)
        if annotation_problem(row, sizes, category_ids, inspection.masks, inspection.keypoints):
            counts["annotations removed"] += 1
            continue
        assert size is not None
        key = (row["image_id"], row["category_id"], *row["bbox"])
        if key in unique:
            counts["duplicate annotations removed"] += 1
            continue
        unique.add(key)
        if row["id"] in ids:
            row["id"], next_id = next_id, next_id + 1
            counts["ids replaced"] += 1
        ids.add(row["id"])
        counts["boxes computed from masks"] += redrawn
        counts["boxes clipped"] += _clip(row, *size)
        kept.append(row)
    images = [row for key, row in inspection.images.items() if key in sizes]
    content = {
        **inspection.content,
        "images": images,
        "annotations": kept,
        "categories": inspection.category_rows,
    }
    return content, counts


def _box_from_mask(row: Row, height: int, width: int) -> bool:
    """Replace an invalid box by the tight box of the mask; return True if that was possible."""
    if box_problem(row.get("bbox"), height, width) is None:
        return False
    tight = mask_box(row.get("segmentation"), height, width)
    if tight is not None:
        row["bbox"] = tight
    return tight is not None


def _clip(row: Row, height: int, width: int) -> bool:
    """Clip the box to its image; return True if that changed it."""
    x, y, w, h = row["bbox"]
    if x >= 0 and y >= 0 and x + w <= width and y + h <= height:
        return False
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
    row["bbox"] = [x1, y1, x2 - x1, y2 - y1]
    return True
