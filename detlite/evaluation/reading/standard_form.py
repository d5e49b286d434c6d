"""Recognize annotation files in COCO's form, and complete files without names or sizes.

Letters in shapes: I images, N annotations, Q polygons.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from detlite.data.datasets.coco_values import MAX_SPARSE, parse_if_text, parse_numbers
from detlite.data.index.normalization import Ids
from detlite.data.index.states import set_file_name
from detlite.evaluation.overlaps import count_intersections
from detlite.evaluation.results import in_range
from detlite.structures.keypoints import keypoint_names
from detlite.structures.masks.rle import EncodedMasks

from .columns import Columns

_NO_SIZE = ((None, None), (0, 0), (None, 0), (0, None))
_ANY_SIZE = 1 << 40
_MAX_OUTSIDE = 0.1  # fraction of the labeled keypoints that are not reported
_MARGIN = 64  # pixels by which polygons may exceed their image, see `coco_masks`


def is_standard(columns: Columns, content: Any, kinds: Sequence[str]) -> bool:
    """Return True if a dataset would use every entry without a change.

    The conditions are those of `data/index`, `coco_values` and `coco_masks`, or stricter ones.

    Args:
        columns: the annotations.
        content: the file without them.
        kinds: the IoU types to measure.
    """
    ids = [_ids(content, key) for key in ("images", "categories")]
    if not all(len(known) for known in ids):
        return False
    references, numbers = columns.integers[:, :2].T, columns.numbers[:, 1:6]
    fields = ("id", "image_id", "category_id", "area", "bbox")
    if not (
        all(columns.has(field).all() for field in fields)
        and all(np.isin(*pair).all() for pair in zip(references, ids, strict=True))
        and len(np.unique(columns.integers[:, 2])) == len(columns)
        and np.isin(columns.integers[:, 3], (0, 1)).all()
        and in_range(numbers).all()
        and (numbers[:, 0] > 0).all()
        and _are_standard_categories(content["categories"])
    ):
        return False
    sizes = _standard_sizes(content["images"], required="segm" in kinds)
    if sizes is None:
        return False
    order = np.argsort(ids[0])
    limits = sizes[order[np.searchsorted(ids[0], references[0], sorter=order)]]
    points = len(keypoint_names(content["categories"]))
    return (
        _are_standard_boxes(numbers[:, 1:], numbers[:, 0], limits)
        and _are_standard_masks(columns, limits, required="segm" in kinds)
        and _are_standard_keypoints(columns, limits, points, required="keypoints" in kinds)
    )


def _ids(content: Any, key: str) -> np.ndarray:
    """Return the ids of the images or categories; none if they are not different integers."""
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return np.empty(0)
    ids = [row.get("id") for row in rows]
    if any(type(n) is not int or abs(n) >= 1 << 62 for n in ids) or len({*ids}) < len(ids):
        return np.empty(0)
    return np.array(ids, np.int64)


def _standard_sizes(images: list[dict[str, Any]], required: bool) -> np.ndarray | None:
    """Return the (height, width) of the images, int64 [I, 2]; None if an entry is not standard.

    Missing sizes are _ANY_SIZE, unless sizes are `required`.
    """
    sizes = [(row.get("height"), row.get("width")) for row in images]
    if not required:
        sizes = [(_ANY_SIZE, _ANY_SIZE) if size in _NO_SIZE else size for size in sizes]
    names = [set_file_name(row, by_url=False).get("file_name") or row["id"] for row in images]
    if {type(side) for size in sizes for side in size} != {int}:
        return None
    if not all(row.get("file_name") is None or type(row["file_name"]) is str for row in images):
        return None
    known = np.array(sizes)
    if known.min() < 1 or known[known < _ANY_SIZE].max(initial=0) >= 1 << 16:
        return None
    return known if len({*zip(names, sizes, strict=True)}) == len(images) else None


def _are_standard_categories(categories: list[dict[str, Any]]) -> bool:
    """Return True if all names are different, and no category is the root of others."""
    names = [row["id"] if row.get("name") is None else row["name"] for row in categories]
    keypoints = [row["keypoints"] for row in categories if row.get("keypoints")]
    return (
        all(isinstance(row.get("name"), str | None) for row in categories)
        and len({*map(str, names)}) == len(names)
        and all(names == keypoints[0] for names in keypoints)
        and not any(row["id"] == 0 and row.get("supercategory") == "none" for row in categories)
    )


def _are_standard_boxes(boxes: np.ndarray, areas: np.ndarray, limits: np.ndarray) -> bool:
    """Return True if boxes xywh [N, 4] and areas [N] fit their images of (height, width) [N, 2]."""
    start, sides = boxes[:, :2], boxes[:, 2:]
    low, high = np.maximum(start, 0), np.minimum(start + sides, limits[:, ::-1])
    overhang = np.maximum(low - start, start + sides - high)
    in_pixel = ((start >= 0) & (start <= 1) & (sides < 1)).all(axis=1)  # probably fractions
    return bool(
        not in_pixel.any()
        and (areas <= limits.prod(axis=1, dtype=float)).all()
        and not ((areas < 1) & (sides.prod(axis=1) > MAX_SPARSE)).any()
        and (sides > 0).all()
        and (low.astype(np.float32) < high.astype(np.float32)).all()
        and (overhang <= np.maximum(2, 0.1 * sides)).all()
    )


def _are_standard_masks(columns: Columns, limits: np.ndarray, required: bool) -> bool:
    """Return True if all masks are in their images of (height, width) [N, 2] and have an area."""
    is_rle, lengths = columns.has("rle"), columns.polygon_lengths
    if required and not (is_rle | (columns.polygons > 0)).all():
        return False
    if (lengths < 6).any() or (lengths % 2).any() or not np.isfinite(columns.corners).all():
        return False
    if len(lengths):
        corners = columns.corners.reshape(-1, 2)
        first = (lengths.cumsum() - lengths) // 2
        low, high = np.minimum.reduceat(corners, first), np.maximum.reduceat(corners, first)
        size = np.repeat(limits, columns.polygons, axis=0)[:, ::-1]
        longest = size.max(axis=1, keepdims=True)
        in_pixel = ((low >= 0) & (high <= 1)).all(axis=1)  # probably fractions
        if in_pixel.any() or not ((low < high) & (low < size) & (high > 0)).all():
            return False
        if (low < -_MARGIN).any() or (high > longest + _MARGIN).any():
            return False
    if not is_rle.any():
        return True
    masks = columns.masks[np.flatnonzero(is_rle)]
    every, nothing = np.arange(len(masks.sizes)), EncodedMasks.from_rles([])
    ranges = np.zeros((len(every), 2), np.int64)
    _, areas, _ = count_intersections(masks, every, nothing, ranges)
    return bool((masks.sizes == limits[is_rle]).all() and (areas > 0).all())


def _are_standard_keypoints(
    columns: Columns, limits: np.ndarray, points: int, required: bool
) -> bool:
    """Return True if objects have all `points` keypoints or none; 0: the categories name none."""
    if not points and not required:
        return True
    lengths = columns.keypoint_lengths
    length = 3 * points or lengths.max(initial=0)
    return bool(
        length % 3 == 0
        and np.isin(lengths, (0, length)).all()
        and np.isfinite(columns.keypoints).all()
        and (lengths.any() or not required or not len(lengths))
        and np.isin(columns.keypoints[2::3], (0, 1, 2)).all()
        and _are_mostly_inside(
            columns.keypoints.reshape(-1, 3), np.repeat(limits, lengths // 3, axis=0)
        )
    )


def _are_mostly_inside(points: np.ndarray, limits: np.ndarray) -> bool:
    """Return True unless many labeled points (x, y, visibility) seem to be misplaced.

    Datasets report those that are outside of their image of (height, width), or fractions of it.
    """
    x_y, labeled = points[:, :2], points[:, 2] > 0
    outside = ((x_y < -1) | (x_y > limits[:, ::-1])).any(axis=1) | (x_y <= 1).all(axis=1)
    return bool((outside & labeled).sum() <= _MAX_OUTSIDE * labeled.sum())


def complete(content: dict[str, Any], kinds: Sequence[str]) -> bool:
    """Fill in what datasets need but metrics do not, in place; True if something was missing.

    The names of files, categories and keypoints are numbers. Without masks, images without a size
    become as large as their boxes need.
    """
    images, categories, annotations = (
        [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        for rows in map(content.get, ("images", "categories", "annotations"))
    )
    missing: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for row in images:
        if not row.get("file_name") and not row.get("coco_url"):
            missing.append((row, {"file_name": f"image {row.get('id')}"}))
    for row in categories:
        if row.get("name") is None:
            missing.append((row, {"name": str(row.get("id"))}))
    points = [parse_if_text(row.get("keypoints")) for row in annotations]
    points = [values for values in points if isinstance(values, list) and values]
    if "keypoints" in kinds and points and not any(row.get("keypoints") for row in categories):
        count = len(points[0]) // (1 if isinstance(points[0][0], list) else 3)
        names = [*map(str, range(1, count + 1))]
        missing += [(row, {"keypoints": names}) for row in categories if names]
    read_id = Ids(row.get("id") for row in images)
    sizes = {
        read_id(row.get("id")): [1, 1]
        for row in images
        if "segm" not in kinds and not row.get("height") and not row.get("width")
    }
    for row in annotations if sizes else ():
        box = parse_numbers(parse_if_text(row.get("bbox"))) or []
        size = sizes.get(read_id(row.get("image_id")))
        if size and len(box) == 4 and max(map(abs, box)) < _ANY_SIZE:  # others are refused later
            size[:] = max(size[0], ceil(box[1] + box[3])), max(size[1], ceil(box[0] + box[2]))
    for row in images:
        if size := sizes.get(read_id(row.get("id"))):
            missing.append((row, {"height": size[0], "width": size[1]}))
    for row, fields in missing:
        row |= fields
    return bool(missing)
