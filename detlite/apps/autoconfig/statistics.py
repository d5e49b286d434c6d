"""Statistics of a dataset."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detlite.data.datasets.coco_checks import keypoint_names
from detlite.data.errors import DataError
from detlite.data.index.annotation_index import CROWD, NO_KEYPOINTS, NO_MASK, invalid_flags
from detlite.data.index.build import open_index
from detlite.data.loading.image_checks import find_bad_images
from detlite.data.loading.image_io import DEFAULT_OPTIONS, ImageOptions, ImageSource, read_image
from detlite.data.remote.locations import Location, local_copy
from detlite.data.remote.shards import ImageFolder, image_file_of

_SAMPLE = 32  # number of images that are decoded


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of a dataset with I images and N valid objects that are not crowds.

    Attributes:
        sizes: float64 [I, 2], (height, width) of the images.
        boxes: float64 [N, 4], (x, y, width, height) in pixels of the image.
        owners: int64 [N], index of the image of each object.
        labels: int64 [N], index in `categories` of each object.
        categories: (name, number of objects, number of images) of each category, ordered by id.
        with_masks: number of objects with a valid segmentation.
        keypoints: names of the keypoints, if a category has any.
        with_keypoints: number of objects with valid keypoints.
        invalid: number of annotations and images that the loader would refuse for a model without
            masks.
        first_invalid: description of the first problem.
        invalid_with_masks: the number for a model with masks.
        decoding: median seconds to read an image on one core, from a sample.
        top_bottom: mean brightness of the upper half of images minus that of the lower half, -1 to
            1, from the sample.
        empty: number of images without annotations.
    """

    sizes: np.ndarray
    boxes: np.ndarray
    owners: np.ndarray
    labels: np.ndarray
    categories: list[tuple[str, int, int]]
    with_masks: int
    keypoints: list[str]
    with_keypoints: int
    invalid: int
    first_invalid: str
    invalid_with_masks: int
    decoding: float
    top_bottom: float
    empty: int = 0

    @property
    def per_image(self) -> np.ndarray:
        """Number of objects in each image, int64 [I]."""
        return np.bincount(self.owners, minlength=len(self.sizes))

    @property
    def sides(self) -> np.ndarray:
        """sqrt(width * height) of each object in pixels, float64 [N]."""
        return np.sqrt(self.boxes[:, 2] * self.boxes[:, 3])

    @property
    def ratios(self) -> np.ndarray:
        """height / width of each object, float64 [N]."""
        return self.boxes[:, 3] / self.boxes[:, 2]


def compute_statistics(
    annotations: Location,
    images: ImageFolder,
    image_options: ImageOptions = DEFAULT_OPTIONS,
    check: bool = True,
) -> DatasetStatistics:
    """Read an annotation file, check all of its images and decode some.

    Args:
        annotations: COCO file, local or remote.
        images: folder of the images.
        image_options: see `read_image`.
        check: check that all images can be read.

    Raises:
        DataError: the file cannot be used, all images are missing or damaged, or no object has a
            valid box.
    """
    with local_copy(annotations) as file:
        index = open_index(file)
    problems, invalid = index.problems(False, 0, 1)
    bad_images = find_bad_images(index, images, image_options) if check else {}
    count = len(index.image_ids)
    if len(bad_images) == count:
        raise DataError(f"{annotations}: none of its {count} images can be used: {bad_images[0]}")
    skipped = invalid_flags(False, False) | CROWD
    boxes, owners, labels = [], [], []
    numbers = [number for number in range(count) if number not in bad_images]
    for number in numbers:
        rows = index.annotations(number, skipped)
        boxes += [row["bbox"] for row in rows]
        owners += [number] * len(rows)
        labels += [row["category_id"] for row in rows]
    if not boxes:
        first = f": {problems[0]}" if problems else ""
        raise DataError(
            f"{annotations}: no image has an object with a valid box, so there is nothing to train "
            f"on{first}"
        )
    files = [image_file_of(images, index.image(number)) for number in numbers]
    decoding, top_bottom = _decode_sample(files, image_options)
    categories = sorted(index.content["categories"], key=lambda row: row["id"])
    names = keypoint_names(categories)
    return DatasetStatistics(
        sizes=index.sizes.astype(np.float64),
        boxes=np.array(boxes, np.float64),
        owners=np.array(owners),
        labels=np.searchsorted([row["id"] for row in categories], labels),
        categories=_count_by_category(categories, np.array(labels), np.array(owners)),
        with_masks=int(index.counts(skipped | NO_MASK)[numbers].sum()),
        keypoints=names,
        with_keypoints=int(index.counts(skipped | NO_KEYPOINTS)[numbers].sum()) if names else 0,
        invalid=invalid + len(bad_images),
        first_invalid=next(iter([*problems, *bad_images.values()]), ""),
        invalid_with_masks=index.problems(True, 0, 1)[1] + len(bad_images),
        decoding=decoding,
        top_bottom=top_bottom,
        empty=int((index.counts(without=0)[numbers] == 0).sum()),
    )


def _count_by_category(
    categories: list[dict[str, object]], labels: np.ndarray, owners: np.ndarray
) -> list[tuple[str, int, int]]:
    counts = []
    for category in categories:
        own = labels == category["id"]
        counts.append((str(category["name"]), int(own.sum()), len(np.unique(owners[own]))))
    return counts


def _decode_sample(files: Sequence[ImageSource], options: ImageOptions) -> tuple[float, float]:
    """Return median seconds and mean brightness difference of images spread over the list."""
    times, differences = [], []
    for file in files[:: max(len(files) // _SAMPLE, 1)][:_SAMPLE]:
        start = time.perf_counter()
        try:
            image = read_image(file, options=options)
        except DataError:  # damaged content
            continue
        times.append(time.perf_counter() - start)
        half = image.shape[1] // 2
        if half:
            upper, lower = image[:, :half], image[:, -half:]
            differences.append((upper.float().mean() - lower.float().mean()).item() / 255)
    return float(np.median(times or [0.0])), float(np.mean(differences or [0.0]))
