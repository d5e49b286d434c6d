"""The ground truth of COCO's evaluation, as pycocotools holds it, from tables of annotations."""

import contextlib
import io
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.annotations.scan import without_gc
from detlite.data.annotations.selection import Flag, Selection
from detlite.data.annotations.store import open_table, table_of
from detlite.data.annotations.table import AnnotationTable
from detlite.files.errors import DataError

from .coco import CocoDataset
from .options import DatasetOptions
from .usable_images import choose_images

logger = logging.getLogger(__name__)

# The images of the annotation file that are not among the images, as entries with an `id`.
NOT_EVALUATED = "not_evaluated"


def build_coco_gt(dataset: CocoDataset, annotations: bool = True) -> COCO:
    """Return the ground truth of the images of a dataset, crowds included.

    Without `annotations` it has images and categories only, which take little memory.
    """
    selection, ids = dataset.options.selection, [row["id"] for row in dataset.categories]
    return _coco(dataset.table, dataset.numbers, ids, selection, ("all",) * annotations)


def read_coco_gt(
    source: COCO | CocoDataset | Path | str | dict[str, Any],
    kinds: Sequence[str] = ("bbox",),
    skip_bad: bool = False,
) -> COCO:
    """Return the ground truth in a COCO annotation file, in its content, or in a dataset.

    Entries are read and judged like those of datasets. The names of files and categories may be
    missing, and without "segm" also the sizes of images.

    Args:
        source: a file, its content, a COCO object with the content, or a dataset.
        kinds: the IoU types to measure; "segm" and "keypoints" need masks and keypoints.
        skip_bad: ignore unusable annotations instead of raising an error.

    Returns:
        pycocotools' object. Its annotations have image_id, category_id, bbox, area, iscrowd, and
        the segmentation and keypoints that `kinds` need, all valid.

    Raises:
        DataError: the file cannot be read, or has an unusable annotation.
    """
    if isinstance(source, CocoDataset):
        return build_coco_gt(source)
    if isinstance(source, Path | str):
        name, read = str(source), partial(open_table, Path(source))
    else:
        name = "the ground truth"
        read = partial(table_of, source.dataset if isinstance(source, COCO) else source, name)
    options = DatasetOptions(
        masks="segm" in kinds, keypoints="keypoints" in kinds, skip_bad=skip_bad, check_images=False
    )
    try:
        table = read()
        nameless = bool(table.facts["image_problems"]) or not (table.sizes > 0).all()
        nameless |= options.keypoints and not table.keypoint_names
    except DataError:
        nameless = True
    table = read(nameless=True) if nameless else table
    numbers, findings = choose_images(table, None, options, name)
    for text in filter(None, (finding.without_advice() for finding in findings)):
        logger.warning("%s: %s", name, text)
    ids = [row["id"] for row in table.content["categories"]]
    return _coco(table, numbers, sorted(ids), options.selection, kinds)


@without_gc()
def _coco(
    table: AnnotationTable,
    numbers: np.ndarray,
    categories: list[int],
    selection: Selection,
    kinds: Sequence[str],
) -> COCO:
    """Return a COCO object with the images `numbers`.

    Annotations have every field of the file, unless the IoU type "bbox" is the only one of `kinds`.
    """
    content = {"info": {}, "licenses": [], **table.content, "annotations": []}
    content["images"] = table.images(numbers)
    others = table.images(np.setdiff1d(np.arange(len(table)), numbers))
    content[NOT_EVALUATED] = [*others, *table.facts["unused_images"]]
    if kinds:
        content["annotations"] = _annotations(table, numbers, categories, selection, kinds)
    coco = COCO()
    coco.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def _annotations(
    table: AnnotationTable,
    numbers: np.ndarray,
    categories: list[int],
    selection: Selection,
    kinds: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the objects of each image, then its regions to ignore as crowds.

    Id 0 is replaced, because the evaluation of pycocotools ignores matches with it.
    """
    chosen = np.zeros(len(table) + 1, bool)
    chosen[numbers] = True
    owners, flags = table.owners, table.flags
    is_region = selection.regions(flags)
    used = np.flatnonzero(chosen[owners] & (selection.objects(flags) | is_region))
    used = used[np.lexsort((used, is_region[used], owners[used]))]
    only_boxes = {*kinds} == {"bbox"}
    rows = _boxes(table, used) if only_boxes else table.rows(used)
    points, annotated = len(table.keypoint_names), list[dict[str, Any]]()
    free_id = max((row["id"] for row in rows), default=0) + 1
    columns = (flags[used], is_region[used], table.column("labeled")[used])
    for row, flag, region, labeled in zip(
        rows, *(column.tolist() for column in columns), strict=True
    ):
        row |= {"iscrowd": int(region), "id": row["id"] or free_id}
        if points and not only_boxes:
            if flag & Flag.BAD_KEYPOINTS:
                row |= {"keypoints": None, "num_keypoints": 0}
            row["keypoints"] = row.get("keypoints") or [0] * 3 * points
            if row.get("num_keypoints") is None:
                row["num_keypoints"] = labeled
        if not region:
            annotated.append(row)
            continue
        if flag & (Flag.NO_MASK | Flag.BAD_MASK):
            x, y, w, h = row["bbox"]
            row["segmentation"] = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        known = [row["category_id"]] if not flag & Flag.UNKNOWN_CATEGORY else categories
        for k, category_id in enumerate(known):
            row_id = -1 - len(annotated) if k else row["id"]
            annotated.append({**row, "category_id": category_id, "id": row_id})
    return annotated


def _boxes(table: AnnotationTable, used: np.ndarray) -> list[dict[str, Any]]:
    """Return annotations with ids, boxes and areas only, without reading their texts."""
    names = ("id", "image_id", "category_id", "bbox", "area")
    columns = ("ids", "category_ids", "boxes", "areas")
    ids, category_ids, boxes, areas = (table.column(name)[used].tolist() for name in columns)
    image_ids = table.image_ids[table.owners[used]].tolist()
    values = zip(ids, image_ids, category_ids, boxes, areas, strict=True)
    return [dict(zip(names, row, strict=True)) for row in values]
