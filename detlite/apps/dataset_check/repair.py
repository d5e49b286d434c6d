"""Repair an annotation file by removing or fixing what training refuses."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence

from detlite.data.datasets.coco_masks import read_segmentation
from detlite.data.index.annotation_reader import DOUBTS
from detlite.data.index.states import REGION_KEY
from detlite.files.errors import DataError

from .inspection_report import Inspection, Row

_OBJECT = ("image_id", "category_id", "bbox", "segmentation", "keypoints", "ignore")


def repair(inspection: Inspection) -> tuple[Row, Counter[str]]:
    """Return a repaired copy of an annotation file.

    The copy uses COCO's notation and unique ids, and boxes are clipped to their images. An object
    with an invalid box or mask is marked with `"ignore": 1`, and its valid part is kept. Duplicate
    annotations, annotations without a known position, and unreadable images with their annotations
    are removed.

    Returns:
        The content of the new file, and the number of changes of each kind.

    Raises:
        DataError: the file cannot be read.
    """
    index = inspection.index
    if index is None:
        raise DataError(f"{inspection.name}: {inspection.defects[0].problem}; repair it by hand")
    selection = inspection.selection
    notes = (finding for finding in index.notes if finding.what not in DOUBTS)
    counts = Counter({finding.what: finding.count for finding in notes})
    broken = {defect.image_id for defect in inspection.defects if defect.kind == "image"}
    images, annotations = [], []
    written, category_ids = set[str](), list(inspection.categories)
    for number in range(len(index.image_ids)):
        image = inspection.images[int(index.image_ids[number])]
        if image["id"] in broken:
            counts["images removed"] += 1
            continue
        images.append(image)
        height, width = image["height"], image["width"]
        annotations += index.annotations(number, selection.usable)
        for row in index.annotations(number, selection.ignored):
            counts["invalid objects marked as ignored"] += "ignore" not in row
            if read_segmentation(row.get("segmentation"), height, width).problem:
                row.pop("segmentation", None)
            row |= {"bbox": row.pop(REGION_KEY, row["bbox"]), "ignore": 1}
            annotations.append(row)
    counts["images removed"] += len(index.table["image_problems"])
    counts["annotations removed"] = len(index.arrays["states"]) - len(annotations)
    sizes = {image["id"]: (image["height"], image["width"]) for image in images}
    annotations = [
        {**row, "category_id": category_id}
        for row in annotations
        for category_id in category_ids
        if category_id == row.get("category_id") or row.get("category_id") not in category_ids
    ]
    kept = []
    ids = {row["id"] for row in annotations}
    free_ids = itertools.count(max(ids, default=0) + 1)
    for row in annotations:
        key = json.dumps([row.get(field) for field in _OBJECT], sort_keys=True)
        if key in written:
            counts["equal annotations removed"] += 1
            continue
        written.add(key)
        box = _clip_box(row["bbox"], *sizes[row["image_id"]])
        counts["boxes clipped"] += box != row["bbox"]
        row_id = row["id"] if row["id"] in ids else next(free_ids)
        ids.discard(row_id)
        kept.append({**row, "bbox": box, "id": row_id})
    content = {**index.content, "images": images, "annotations": kept}
    return content, +counts


def _clip_box(box: Sequence[float], height: int, width: int) -> list[float]:
    x, y, w, h = box
    x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
    inside = (x1, y1) == (x, y) and (x2, y2) == (x + w, y + h)
    return list(box) if inside else [x1, y1, x2 - x1, y2 - y1]
