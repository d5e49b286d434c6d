"""Annotations in COCO form made complete for pycocotools."""

from __future__ import annotations

from typing import Any

from pycocotools import mask as mask_utils


def fill_missing(content: dict[str, Any]) -> dict[str, Any]:
    """Fills in place what pycocotools needs and many writers leave out; returns `content`.

    `info`, `licenses`, and of each annotation `iscrowd` (0) and `area` (that of the segmentation,
    or of the box). An annotation with id 0 gets a new id, because pycocotools' evaluation takes
    a match with it for none.

    Args:
        content: an annotation file in COCO form, whose annotations are sound.
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
    if isinstance(segmentation, dict) and isinstance(segmentation["counts"], str):
        return float(mask_utils.area(segmentation))
    rles = mask_utils.frPyObjects(segmentation, height, width)
    return float(mask_utils.area(mask_utils.merge(rles) if isinstance(rles, list) else rles))
