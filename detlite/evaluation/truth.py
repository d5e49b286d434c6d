"""The ground truth of an evaluation: from a file, its content, or a dataset; its sizes and objects.

Letters in shapes: N boxes, A annotations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt, read_coco_gt
from detlite.files.errors import DataError, short_repr

_PAIRS = 1 << 20  # of boxes and objects that are compared together


def read_truth(
    source: COCO | CocoDataset | Path | str | dict[str, Any],
    kinds: Sequence[str] = ("bbox",),
    skip_bad: bool = False,
) -> COCO:
    """Return the ground truth in a COCO annotation file, or in its content.

    Entries are read and judged like those of datasets, see `read_coco_gt`.

    Args:
        source: a file, its content, a `COCO` object with the content as `dataset`, or a dataset.
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
    return read_coco_gt(source, kinds, skip_bad)


def image_sizes(truth: COCO, image_ids: np.ndarray) -> np.ndarray:
    """Return the (height, width) of images [N], int64 [N, 2]. DataError if one is unknown."""
    unique, index = np.unique(image_ids, return_inverse=True)
    images = [truth.imgs[number] for number in unique.tolist()]
    sizes = [[image.get(side) for side in ("height", "width")] for image in images]
    for number, size in zip(unique.tolist(), sizes, strict=True):
        if not all(type(side) is int and 0 <= side < 1 << 31 for side in size):
            problem = f"has the size {short_repr(size)} (height, width)"
            raise DataError(f"ground truth: image {number} {problem}")
    return np.array(sizes, np.int64).reshape(-1, 2)[index]


@dataclass(frozen=True, eq=False)
class Objects:
    """The annotations of a ground truth."""

    image_ids: np.ndarray  # int64 [A]
    category_ids: np.ndarray  # int64 [A]
    boxes: np.ndarray  # float64 [A, 4], xywh in pixels
    crowds: np.ndarray  # bool [A]


def read_objects(truth: COCO) -> Objects:
    """Return the annotations of a ground truth as arrays."""
    rows = truth.dataset["annotations"]
    return Objects(
        np.array([row["image_id"] for row in rows], np.int64),
        np.array([row["category_id"] for row in rows], np.int64),
        np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4),
        np.array([bool(row.get("iscrowd")) for row in rows], bool),
    )


def most_overlapped(
    boxes: np.ndarray, keys: np.ndarray, objects: Objects, object_keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the object with the same key that overlaps each box most.

    Args:
        boxes: xywh float64 [N, 4]; boxes of negative size overlap nothing.
        keys, object_keys: int64 [N] and [A], such as the ids of their images.
        objects: crowds count by the fraction of the box that is on them, instead of the IoU.

    Returns:
        The indices of the objects, int64 [N], and the IoUs, float64 [N]; -1 and 0 if there is none.
    """
    order = np.argsort(object_keys, kind="stable")
    first = np.searchsorted(object_keys[order], keys)
    counts = np.searchsorted(object_keys[order], keys, "right") - first
    index, best = np.full(len(boxes), -1), np.zeros(len(boxes))
    known, areas = objects.boxes, objects.boxes[:, 2:].prod(axis=1)
    used = np.flatnonzero(counts)
    step = max(_PAIRS // int(counts.max(initial=1)), 1)
    for rows in (used[n : n + step] for n in range(0, len(used), step)):
        number = counts[rows]
        starts = number.cumsum() - number  # of the pairs of each box
        ranks = np.arange(number.sum()) - np.repeat(starts - first[rows], number)
        near, box = order[ranks], np.repeat(boxes[rows], number, axis=0)
        low = np.maximum(box[:, :2], known[near, :2])
        high = np.minimum(box[:, :2] + box[:, 2:], known[near, :2] + known[near, 2:])
        shared = (high - low).clip(0).prod(axis=1)
        area = box[:, 2:].prod(axis=1)
        union = np.where(objects.crowds[near], area, area + areas[near] - shared)
        ious = shared / np.where(shared > 0, union, 1)
        best[rows] = np.maximum.reduceat(ious, starts)
        owners = np.repeat(rows, number)
        hits = np.flatnonzero(ious == best[owners])[::-1]
        index[owners[hits]] = near[hits]  # the first object is assigned last
    return index, best
