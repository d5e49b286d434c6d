"""The ground truth of a dataset for COCO's evaluation, as pycocotools holds it."""

import contextlib
import io
from typing import Any

from pycocotools.coco import COCO

from detlite.data.index.states import REGION_KEY

from .coco import CocoDataset
from .coco_masks import annotation_area, read_segmentation
from .coco_values import read_keypoints


def build_coco_gt(dataset: CocoDataset, annotations: bool = True) -> COCO:
    """Return the ground truth of the images of a dataset, crowds included.

    Without `annotations` it has images and categories only, which take little memory.
    """
    index, selection = dataset.index, dataset.options.selection
    content = dict(index.content)
    content["images"] = [index.image(number) for number in dataset.numbers.tolist()]
    content["annotations"] = annotated = []
    ids = [row["id"] for row in dataset.categories]
    numbered = zip(dataset.numbers.tolist(), content["images"], strict=True)
    for number, image in numbered if annotations else ():
        rows = index.annotations(number, selection.objects)
        annotated += [{**row, "iscrowd": 0} for row in rows]
        for row in index.annotations(number, selection.regions):
            category = row.get("category_id")
            for k, category_id in enumerate([category] if category in ids else ids):
                row_id = -1 - len(annotated) if k else row["id"]
                region = {**row, "category_id": category_id, "id": row_id}
                annotated.append(_region(region, image, len(dataset.keypoint_names)))
    coco = COCO()
    coco.dataset = fill_missing(content)
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def _region(row: dict[str, Any], image: dict[str, Any], keypoints: int) -> dict[str, Any]:
    """Return a crowd annotation with box, mask and keypoints for a region to ignore."""
    x, y, w, h = box = row.get(REGION_KEY, row["bbox"])
    mask = read_segmentation(row.get("segmentation"), image["height"], image["width"])
    polygon = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    region = {**row, "iscrowd": 1, "bbox": box, "segmentation": mask.value or polygon}
    if keypoints:
        points = read_keypoints(row.get("keypoints"), keypoints)
        region["keypoints"] = points.value or [0] * 3 * keypoints
        if points.problem:
            region["num_keypoints"] = 0
    return region


def fill_missing(content: dict[str, Any]) -> dict[str, Any]:
    """Fill in the fields that pycocotools needs and many files lack, in place; return `content`.

    These are `info`, `licenses`, `iscrowd`, and `area` of the segmentation or of the box. Id 0 is
    replaced, because the evaluation of pycocotools ignores matches with it.
    """
    content.setdefault("info", {})
    content.setdefault("licenses", [])
    sizes = {row["id"]: (row["height"], row["width"]) for row in content["images"]}
    free_id = max((row["id"] for row in content["annotations"]), default=0) + 1
    for row in content["annotations"]:
        row["iscrowd"] = row.get("iscrowd") or 0
        if row["id"] == 0:
            row["id"] = free_id
        if row.get("area") is None:
            size = sizes[row["image_id"]]
            row["area"] = annotation_area(row.get("segmentation"), row["bbox"], *size)
    return content
