"""Read the ground truth of an evaluation: from a file, its content, or a dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO

from detlite.data.datasets.coco import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt, read_coco_gt
from detlite.files.errors import DataError, short_repr


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
