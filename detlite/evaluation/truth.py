"""The objects of a ground truth as arrays.

Letters in shapes: N boxes, A annotations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from pycocotools import mask as rle_codec
from pycocotools.coco import COCO


@dataclass(frozen=True, eq=False)
class Objects:
    """The annotations of a ground truth."""

    image_ids: np.ndarray  # int64 [A]
    category_ids: np.ndarray  # int64 [A]
    boxes: np.ndarray  # float64 [A, 4], xywh in pixels
    areas: np.ndarray  # float64 [A], pixels
    crowds: np.ndarray  # bool [A]


def read_objects(truth: COCO) -> Objects:
    """Return the annotations of a ground truth as arrays."""
    fields = ("image_id", "category_id", "bbox", "area", "iscrowd")
    rows = [*map(itemgetter(*fields), truth.dataset["annotations"])]
    image_ids, category_ids, boxes, areas, crowds = zip(*rows, strict=True) if rows else [()] * 5
    return Objects(
        np.array(image_ids, np.int64),
        np.array(category_ids, np.int64),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(areas, np.float64),
        np.array(crowds, bool),
    )


def numbers_of(ids: Iterable[int]) -> dict[int, int]:
    """Return the number of each id, by increasing id from 0."""
    return {key: n for n, key in enumerate(sorted(ids))}


def indices_of(keys: np.ndarray) -> dict[int, np.ndarray]:
    """Return the indices of each key of int64 [N], in their order."""
    order = np.argsort(keys, kind="stable")
    unique, first = np.unique(keys[order], return_index=True)
    return dict(zip(unique.tolist(), np.split(order, first[1:]), strict=False))


def best_of_each_image(scores: np.ndarray, images: np.ndarray, limit: int) -> np.ndarray:
    """Return the indices of the `limit` highest scores [N] of each image [N], sorted by both."""
    order = np.lexsort((-scores, images))
    ranks = np.arange(len(order)) - np.searchsorted(images[order], images[order])
    return order[ranks < limit]


def image_sizes(truth: COCO, image_ids: np.ndarray) -> np.ndarray:
    """Return the (height, width) of images [N], int64 [N, 2]; 0 if unknown."""
    unique, index = np.unique(image_ids, return_inverse=True)
    images = [truth.imgs[number] for number in unique.tolist()]
    sizes = [(image["height"], image["width"]) for image in images]
    return np.array(sizes, np.int64).reshape(-1, 2)[index]


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
    index, best = np.full(len(boxes), -1), np.zeros(len(boxes))
    groups, object_groups = indices_of(keys), indices_of(object_keys)
    for key in groups.keys() & object_groups.keys():
        found, known = groups[key], object_groups[key]
        ious = rle_codec.iou(boxes[found], objects.boxes[known], objects.crowds[known])
        index[found], best[found] = known[ious.argmax(axis=1)], ious.max(axis=1)
    return index, best
