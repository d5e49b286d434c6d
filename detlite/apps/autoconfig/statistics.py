"""What a data set looks like, in numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detlite.data.datasets.coco_checks import keypoint_names
from detlite.data.errors import DataError
from detlite.data.index.annotation_index import CROWD, NO_KEYPOINTS, NO_MASK, invalid_flags
from detlite.data.index.build import open_index
from detlite.data.loading.image_checks import find_bad_images
from detlite.data.loading.image_io import MAX_PIXELS, ImageSource, read_image
from detlite.data.remote.locations import Location, local_copy
from detlite.data.remote.shards import ImageFolder, image_file_of

_SAMPLE = 32  # pictures that are decoded


@dataclass(frozen=True)
class SetStatistics:
    """Numbers of a data set; I images, N objects that are sound and no crowds.

    Attributes:
        sizes: float64 [I, 2] of (height, width) of the pictures.
        boxes: float64 [N, 4] of (x, y, width, height) in pixels of the picture.
        owners: int64 [N], which image an object is in.
        labels: int64 [N], which of `categories`, from 0.
        categories: of each category (name, objects, images), in the order of ids.
        with_masks: objects that have a sound segmentation.
        keypoints: names, if a category has them.
        with_keypoints: objects that have sound keypoints.
        unsound: annotations and pictures that the loader would refuse, needing no masks.
        first_unsound: what is wrong with the first of them.
        unsound_masks: the same, were every annotation to have a mask.
        decoding: seconds that reading a picture takes on one core, the median of a sample.
        top_bottom: how much brighter the upper half of pictures is than the lower, -1 to 1, mean of
            the sample.
        empty: pictures without any annotation.
    """

    sizes: np.ndarray
    boxes: np.ndarray
    owners: np.ndarray
    labels: np.ndarray
    categories: list[tuple[str, int, int]]
    with_masks: int
    keypoints: list[str]
    with_keypoints: int
    unsound: int
    first_unsound: str
    unsound_masks: int
    decoding: float
    top_bottom: float
    empty: int = 0

    @property
    def per_image(self) -> np.ndarray:
        """How many objects each image has, int64 [I]."""
        return np.bincount(self.owners, minlength=len(self.sizes))

    @property
    def sides(self) -> np.ndarray:
        """sqrt(width * height) of each object in pixels, float64 [N]."""
        return np.sqrt(self.boxes[:, 2] * self.boxes[:, 3])

    @property
    def ratios(self) -> np.ndarray:
        """height / width of each object, float64 [N]."""
        return self.boxes[:, 3] / self.boxes[:, 2]


def measure(
    annotations: Location,
    images: ImageFolder,
    max_pixels: int = MAX_PIXELS,
    bits: int = 16,
    exif_orientation: bool = True,
    check: bool = True,
) -> SetStatistics:
    """Reads an annotation file, checks all of its pictures and decodes some.

    Args:
        annotations: in COCO's form, on the disk or at a URL.
        images: the folder of its pictures, or its URL.
        max_pixels, bits, exif_orientation: of a picture, see `read_image`.
        check: whether to look at all pictures.

    Raises:
        DataError: the file cannot be used at all, all pictures are missing or damaged, or no
            object has a sound box.
    """
    with local_copy(annotations) as file:
        index = open_index(file)
    problems, unsound = index.problems(False, 0, 1)
    limits = max_pixels, bits, exif_orientation
    broken = find_bad_images(index, images, *limits) if check else {}
    count = len(index.image_ids)
    if len(broken) == count:
        raise DataError(f"{annotations}: none of its {count} pictures can be used: {broken[0]}")
    skipped = invalid_flags(False, False) | CROWD
    boxes, owners, labels = [], [], []
    numbers = [number for number in range(count) if number not in broken]
    for number in numbers:
        rows = index.annotations(number, skipped)
        boxes += [row["bbox"] for row in rows]
        owners += [number] * len(rows)
        labels += [row["category_id"] for row in rows]
    if not boxes:
        why = f": {problems[0]}" if problems else ""
        raise DataError(
            f"{annotations}: no image has an object with a sound box, so there is nothing to "
            f"train on{why}"
        )
    pictures = [image_file_of(images, index.image(number)) for number in numbers]
    decoding, top_bottom = _decode(pictures, limits)
    rows = sorted(index.content["categories"], key=lambda row: row["id"])
    names = keypoint_names(rows)
    return SetStatistics(
        sizes=index.sizes.astype(np.float64),
        boxes=np.array(boxes, np.float64),
        owners=np.array(owners),
        labels=np.searchsorted([row["id"] for row in rows], labels),
        categories=_balance(rows, np.array(labels), np.array(owners)),
        with_masks=int(index.counts(skipped | NO_MASK)[numbers].sum()),
        keypoints=names,
        with_keypoints=int(index.counts(skipped | NO_KEYPOINTS)[numbers].sum()) if names else 0,
        unsound=unsound + len(broken),
        first_unsound=next(iter([*problems, *broken.values()]), ""),
        unsound_masks=index.problems(True, 0, 1)[1] + len(broken),
        decoding=decoding,
        top_bottom=top_bottom,
        empty=int((index.counts(without=0)[numbers] == 0).sum()),
    )


def _balance(
    rows: list[dict[str, object]], labels: np.ndarray, owners: np.ndarray
) -> list[tuple[str, int, int]]:
    table = []
    for row in rows:
        own = labels == row["id"]
        table.append((str(row["name"]), int(own.sum()), len(np.unique(owners[own]))))
    return table


def _decode(files: Sequence[ImageSource], limits: tuple[int, int, bool]) -> tuple[float, float]:
    """Median seconds, and mean difference in brightness, of pictures from all over the list."""
    times, differences = [], []
    for file in files[:: max(len(files) // _SAMPLE, 1)][:_SAMPLE]:
        start = time.perf_counter()
        try:
            picture = read_image(file, None, *limits)
        except DataError:  # damaged inside
            continue
        times.append(time.perf_counter() - start)
        half = picture.shape[1] // 2
        if half:
            upper, lower = picture[:, :half], picture[:, -half:]
            differences.append((upper.float().mean() - lower.float().mean()).item() / 255)
    return float(np.median(times or [0.0])), float(np.mean(differences or [0.0]))
