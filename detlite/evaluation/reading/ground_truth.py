"""Read the ground truth of an evaluation into arrays, and check that results fit it."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from pycocotools.coco import COCO

from detlite import ops
from detlite.data.annotations.rules import mask_area
from detlite.data.annotations.single import read_segmentation, segmentation_problem
from detlite.evaluation.results import IOU_TYPES, Results, concatenate_arrays, first_true, in_range
from detlite.files.errors import DataError, short_repr
from detlite.structures.masks.rle import EncodedMasks

from .columns import Columns, columns_of

# The fields that each IoU type needs.
_COMMON = ("image_id", "category_id", "id", "iscrowd", "area", "bbox")
_FIELDS = {
    "bbox": _COMMON,
    "segm": (*_COMMON, "segmentation"),
    "keypoints": (*_COMMON, "keypoints", "num_keypoints"),
}


@dataclass(frozen=True, eq=False)
class GroundTruthArrays:
    """G objects, sorted by category and image; objects of one image keep their order."""

    image_ids: np.ndarray  # int64 [I], increasing
    category_ids: np.ndarray  # int64 [K], increasing
    images: np.ndarray  # int64 [G], indices into image_ids
    categories: np.ndarray  # int64 [G], indices into category_ids
    ids: np.ndarray  # int64 [G], annotation ids
    crowd: np.ndarray  # bool [G]
    ignored: np.ndarray  # bool [G], may be missed: crowds, objects without visible keypoints
    areas: np.ndarray  # float64 [G], in square pixels
    boxes: np.ndarray  # float64 [G, 4], xywh in pixels
    masks: EncodedMasks | None = None  # for the IoU type "segm"
    keypoints: np.ndarray | None = None  # float64 [G, P, 3] of (x, y, visibility), if measured

    def __len__(self) -> int:
        return len(self.images)

    @property
    def keys(self) -> np.ndarray:
        """int64 [G], increasing: a number that identifies category and image."""
        return self.categories * len(self.image_ids) + self.images

    def keys_of(self, image_ids: np.ndarray, category_ids: np.ndarray) -> np.ndarray:
        """Return the keys of image and category ids [N], which must exist."""
        categories = _index_of(self.category_ids, category_ids)
        return categories * len(self.image_ids) + _index_of(self.image_ids, image_ids)


def _index_of(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the index of each of ids [N] in the sorted known ids [K]."""
    span = int(known[-1]) - int(known[0]) + 1 if len(known) else 0
    if not 0 < span <= 16 * (len(known) + len(ids)):
        return np.searchsorted(known, ids)
    table = np.zeros(span, np.int64)
    table[known - known[0]] = np.arange(len(known))
    return table[ids - known[0]]


Truth: TypeAlias = COCO


def bad_polygons(columns: Columns) -> np.ndarray:
    """Return bool [N], True if a polygon has fewer than three corners, or one is not finite."""
    lengths = columns.polygon_lengths
    bad = (lengths < 6) | (lengths % 2 > 0)
    infinite = np.flatnonzero(~np.isfinite(columns.corners))
    bad[np.searchsorted(lengths.cumsum(), infinite, side="right")] = True
    owners = np.repeat(np.arange(len(columns)), columns.polygons)
    return np.bincount(owners[bad], minlength=len(columns)) > 0


def read_ground_truth(coco_gt: Truth, iou_type: str) -> GroundTruthArrays:
    """Read the objects. Their info, area and iscrowd may be missing.

    DataError if an annotation is invalid.
    """
    field, rows = IOU_TYPES[iou_type], coco_gt.dataset.get("annotations", [])

    def describe(n: int, field: str) -> str:
        problem = None
        if field == "segmentation":
            image = coco_gt.imgs.get(rows[n].get("image_id"), {})
            size = image.get("height", 0), image.get("width", 0)
            problem = segmentation_problem(rows[n][field], *size)
        problem = problem or f"{field} is {short_repr(rows[n][field])}"
        return f"ground truth: annotation {rows[n].get('id')}: {problem}"

    columns = columns_of(rows, _FIELDS[iou_type], describe, _read_id)
    ids = columns.integers[:, 2]
    known, indices = [], []
    for column, key in enumerate(("image_id", "category_id")):
        values, entries = columns.integers[:, column], coco_gt.cats if column else coco_gt.imgs
        known.append(np.array(sorted(entries), np.int64))
        indices.append(np.searchsorted(known[-1], values))
        has = columns.has(key)
        if (n := first_true(~has | ~np.isin(values, known[-1]))) is not None:
            value = values[n] if has[n] else None
            raise DataError(f"ground truth: annotation {ids[n]}: {key} {value} is unknown")
    numbers = columns.numbers[:, 1:6]
    if (n := first_true(~in_range(numbers))) is not None:
        raise DataError(describe(n, "bbox" if in_range(numbers[n, :1])[0] else "area"))
    lacking = ~columns.has(field)
    if iou_type == "segm":
        lacking |= columns.has("polygons") & (columns.polygons == 0)
    if iou_type != "keypoints" and (n := first_true(lacking)) is not None:
        raise DataError(
            f"ground truth: annotation {ids[n]} has no {field!r}, which {iou_type} needs"
        )
    areas, boxes = columns.numbers[:, 1], columns.numbers[:, 2:6]
    without_area = np.flatnonzero(~columns.has("area"))
    sizes = image_sizes(coco_gt, columns.integers[without_area, 0])
    for n, size in zip(without_area.tolist(), sizes.tolist(), strict=True):
        mask = read_segmentation(rows[n].get("segmentation"), *size).value
        areas[n] = mask_area(mask, *size) if mask else boxes[n, 2] * boxes[n, 3]
    order = np.lexsort(indices)
    crowd, keypoints, masks = columns.integers[:, 3] != 0, None, None
    ignored = crowd
    if iou_type == "keypoints":
        keypoints = _keypoints(columns)
        visible = (keypoints[:, :, 2] > 0).sum(axis=1)
        counts = np.where(columns.has("num_keypoints"), columns.integers[:, 4], visible)
        ignored = crowd | (counts == 0)
        keypoints = keypoints[order]
    if iou_type == "segm":
        if (n := first_true(bad_polygons(columns))) is not None:
            raise DataError(describe(n, field))
        masks = _masks(columns, image_sizes(coco_gt, columns.integers[:, 0]), order)
    return GroundTruthArrays(
        image_ids=known[0],
        category_ids=known[1],
        images=indices[0][order],
        categories=indices[1][order],
        ids=np.where(ids == 0, ids.max(initial=0) + 1, ids)[order],  # pycocotools ignores id 0
        crowd=crowd[order],
        ignored=ignored[order],
        areas=areas[order],
        boxes=boxes[order],
        masks=masks,
        keypoints=keypoints,
    )


def _read_id(value: Any) -> int:
    """Return an id that may be written as a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)


def _keypoints(columns: Columns) -> np.ndarray:
    """Return keypoints float64 [G, P, 3]; objects without keypoints have unlabeled ones."""
    lengths = columns.keypoint_lengths
    has_any = lengths > 0
    length = int(lengths[has_any.argmax()]) if len(lengths) else 0
    if (n := first_true(has_any & ((lengths != length) | (lengths % 3 > 0)))) is not None:
        raise DataError(
            f"ground truth: annotation {columns.integers[n, 2]} has {lengths[n]} numbers as "
            "keypoints, not x, y and visibility of the same number of points as others"
        )
    filled = np.zeros((len(columns), length))
    filled[has_any] = columns.keypoints.reshape(has_any.sum(), length)
    return filled.reshape(len(columns), length // 3, 3)


def _masks(columns: Columns, sizes: np.ndarray, order: np.ndarray) -> EncodedMasks:
    """Return the masks in the order `order` [N]; `sizes` [N, 2] are the sizes of their images."""
    is_polygon, is_rle = columns.has("polygons"), columns.has("rle")
    if (n := first_true(sizes.prod(axis=1, dtype=float) >= 1 << 32)) is not None:
        raise DataError(
            f"ground truth: image {columns.integers[n, 0]} has the size {sizes[n].tolist()} "
            "(height, width), which is too large for masks"
        )
    if (n := first_true(is_rle & (columns.sizes != sizes).any(axis=1))) is not None:
        raise DataError(
            f"ground truth: annotation {columns.integers[n, 2]}: the mask has the size "
            f"{columns.sizes[n].tolist()}, but its image has {sizes[n].tolist()} (height, width)"
        )
    arrays = (
        columns.corners.reshape(-1, 2), columns.polygon_lengths // 2, columns.polygons[is_polygon],
        sizes[is_polygon],
    )  # fmt: skip
    data, ends = ops.encode_polygons(*map(torch.from_numpy, arrays))
    drawn = EncodedMasks(data.numpy(), np.diff(ends.numpy(), prepend=0), sizes[is_polygon])
    both = concatenate_arrays([drawn, columns.masks[np.flatnonzero(is_rle)]])
    positions = np.concatenate([np.flatnonzero(is_polygon), np.flatnonzero(is_rle)])
    return both[np.argsort(positions)[order]]


def check_results(results: Results, coco_gt: Truth, iou_types: Sequence[str]) -> None:
    """Raise DataError if results lack a field or do not refer to images and categories."""
    for number in (*coco_gt.imgs, *coco_gt.cats):
        try:
            _read_id(number)
        except TypeError as error:
            raise DataError(f"ground truth: id {short_repr(number)} is not an integer") from error
    fields = {"bbox": results.boxes, "segm": results.masks, "keypoints": results.keypoints}
    for iou_type in iou_types:
        if fields[iou_type] is None and len(results):
            raise DataError(f"the results have no {IOU_TYPES[iou_type]!r}, which {iou_type} needs")
    if (n := first_true(~np.isin(results.image_ids, list(coco_gt.imgs)))) is not None:
        raise DataError(
            f"result {n}: image_id {results.image_ids[n]} is not in the ground truth; are these "
            "the results of another dataset?"
        )
    if (n := first_true(~np.isin(results.category_ids, list(coco_gt.cats)))) is not None:
        ids = ", ".join(map(str, sorted(coco_gt.cats)[:10]))
        more = ", ..." if len(coco_gt.cats) > 10 else ""
        raise DataError(
            f"result {n}: category_id {results.category_ids[n]} is not in the ground truth, whose "
            f"ids are {ids}{more}"
        )
    numbers = {"score": results.scores, "bbox": results.boxes, "keypoints": results.keypoints,
               "mask_score": results.mask_scores}  # fmt: skip
    for name, array in numbers.items():
        if array is not None and (n := first_true(~in_range(array))) is not None:
            raise DataError(f"result {n}: the {name} is {array[n].tolist()}")
    if results.masks is not None and "segm" in iou_types:
        expected = image_sizes(coco_gt, results.image_ids)
        sizes = results.masks.sizes
        if (n := first_true((sizes != expected).any(axis=1))) is not None:
            raise DataError(
                f"result {n}: the mask has the size {sizes[n].tolist()}, but image "
                f"{results.image_ids[n]} has {expected[n].tolist()} (height, width)"
            )


def image_sizes(coco_gt: Truth, image_ids: np.ndarray) -> np.ndarray:
    """Return the (height, width) of images [N], int64 [N, 2]."""
    unique, index = np.unique(image_ids, return_inverse=True)
    images = [coco_gt.imgs[number] for number in unique.tolist()]
    sizes = [[image.get(side) for side in ("height", "width")] for image in images]
    try:
        return np.array(sizes, np.int64).reshape(-1, 2)[index]
    except (TypeError, ValueError, OverflowError) as error:
        for number, size in zip(unique.tolist(), sizes, strict=True):
            if not all(type(side) is int and abs(side) < 1 << 63 for side in size):
                problem = f"has the size {size} (height, width)"
                raise DataError(f"ground truth: image {number} {problem}") from error
        raise
