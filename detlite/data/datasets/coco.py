"""Datasets in COCO's annotation format (https://cocodataset.org/#format-data).

Letters in shapes: N objects of an image, P keypoints of an object.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from detlite.data.annotations.judge import annotation_name
from detlite.data.annotations.notation import Row
from detlite.data.annotations.selection import located
from detlite.data.annotations.store import open_table
from detlite.data.annotations.table import Select
from detlite.data.images.reading import read_image, read_reduced
from detlite.data.images.sources import ImageFolder, StoredImage
from detlite.data.locations import Location, errors_naming, local_copy
from detlite.files.errors import DataError
from detlite.structures.categories import CategoryMatch
from detlite.structures.keypoints import PIXEL_CENTER
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.object_fields import object_field

from .options import DEFAULTS, DatasetOptions
from .usable_images import choose_images

Target = dict[str, Any]
# Maps the size (height, width) of an image to the smallest size at which it may be read.
MinSize = Callable[[tuple[int, int]], tuple[int, int]]
# Returns the image that a function reads, or a copy that it has kept.
ImageCache = Callable[[Callable[[], Tensor]], Tensor]
Check = Callable[["CocoDataset"], None]


class CocoDataset(data.Dataset[tuple[Tensor, Target]]):
    """Images with their boxes, labels, masks and keypoints, at the size of the image file.

    `dataset[i]` is `(image, target)`. `image` is uint8 RGB [3, H, W]. `target` follows torchvision:
    `boxes` float32 [N, 4] xyxy, `labels` int64 [N] in 1..K, `image_id` int, `size` (H, W). With
    `train` and `masks` it has `masks`, a `PackedMasks` of N masks. With `keypoints` it has
    `keypoints` float32 [N, P, 3] of (x, y, visibility). With `train` it has `ignored_boxes`
    float32 [M, 4], regions of objects that cannot be used. It also has the own fields of the
    options, see `OBJECT_FIELDS`. Crowd annotations are not part of the target.

    The constructor checks every annotation and image file, see `choose_images`. `dataset[i]` raises
    a DataError that names the file and the image if an image cannot be decoded.

    Args:
        annotations: the annotation file.
        images: the folder of the images.
        options: the entries that are used, and how they are read.
        name: the name of the dataset in messages.
        kind: the type of the catalog entry, which selects the evaluator.
        check: is called before the images are checked, which takes minutes if they are many.

    Attributes:
        table: the content of the annotation file.
        numbers: the numbers of the images in the table, int32 [images].
        findings: what is skipped or reinterpreted.
        proposals: for each image float32 [R, 4], which the target then has as `proposals`; set by
            `build_dataset`.
    """

    def __init__(
        self,
        annotations: Location,
        images: ImageFolder,
        options: DatasetOptions = DEFAULTS,
        name: str = "",
        kind: str = "coco",
        check: Check | None = None,
    ) -> None:
        self.name = name or annotations.stem
        self.kind, self.images, self.options = kind, images, options
        self.annotation_file = annotations
        with local_copy(annotations) as file, errors_naming(self.annotation_file, instead_of=file):
            table = open_table(file, by_url=kind == "lvis")
        self.table = table.ignoring_below(options.min_area)
        fields = ("id", "name", "keypoints") if options.keypoints else ("id", "name")
        rows = sorted(self.table.content["categories"], key=lambda row: row["id"])
        self.categories = [{key: row[key] for key in fields if key in row} for row in rows]
        self.keypoint_names = self.table.keypoint_names if options.keypoints else []
        self.proposals: Sequence[Tensor] | None = None
        self._labels = {row["id"]: k for k, row in enumerate(self.categories, start=1)}
        if check is not None:
            check(self)
        # An array, because the reference counts of a list's elements would copy its memory into
        # every loader process.
        self.numbers, self.findings = choose_images(
            self.table, images, options, self.annotation_file
        )
        for number in self.numbers.tolist() if options.fields else ():
            self._own_fields(self.table.stored(number, options.selection.objects))

    def relabel(self, categories: list[dict[str, Any]], numbers: Sequence[int | None]) -> None:
        """Use the labels of other `categories`; `numbers` are their positions for each own one."""
        ids = [row["id"] for row in self.categories]
        self._labels = {
            k: number + 1 for k, number in zip(ids, numbers, strict=True) if number is not None
        }
        self.categories = categories

    @property
    def image_ids(self) -> list[int]:
        return self.table.image_ids[self.numbers].tolist()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The (height, width) of the images."""
        return [(height, width) for height, width in self.table.sizes[self.numbers].tolist()]

    @property
    def aspect_ratios(self) -> list[float]:
        """The width / height of the images."""
        return [width / height for height, width in self.sizes]

    @property
    def has_objects(self) -> bool:
        """True if an image has a valid annotation, crowds included."""
        return bool(self.table.counts(located)[self.numbers].any())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        return self.load(index)

    def load(
        self, index: int, min_size: MinSize | None = None, cache: ImageCache | None = None
    ) -> tuple[Tensor, Target]:
        """Return `dataset[index]`; with `min_size`, the image may be smaller than `size`.

        The image is what `cache` returns for the function that reads it.
        """
        entry = self.table.image(int(self.numbers[index]))
        size = entry["height"], entry["width"]
        file, options = self.images / entry["file_name"], self.options
        if min_size is None:
            read = partial(read_image, file, size, options.images)
        else:
            limits = min_size(size), options.cache_bytes
            read = partial(read_reduced, file, size, options.images, *limits)
        try:
            image = cache(read) if cache else read()
        except DataError as error:
            raise DataError(f"{error} (image id {entry['id']})") from error
        return image, self._target(index, size) | {"image_id": entry["id"], "size": size}

    def image_path(self, index: int) -> Path | StoredImage:
        """Return the image file of `dataset[index]`."""
        return self.images / self.table.image(int(self.numbers[index]))["file_name"]

    def labels(self, index: int) -> np.ndarray:
        """Return the labels of `dataset[index]`, int64 [N], without reading the image."""
        selection = self.options.selection
        ids = self.table.values("category_ids", int(self.numbers[index]), selection.objects)
        return np.array([self._labels[number] for number in ids.tolist()], np.int64)

    def boxes(self, index: int) -> Tensor:
        """Return the boxes of `dataset[index]`, float32 [N, 4], without reading the image."""
        return self._corners(index, self.options.selection.objects)

    def _own_fields(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return the own fields of annotations by name. Raises DataError."""
        own = {}
        for name in self.options.fields:
            field = object_field(name)
            shape = field.shape or ()
            own[name] = values = torch.zeros(len(rows), *shape, dtype=field.dtype)
            for number, row in enumerate(rows):
                try:
                    value = torch.as_tensor(field.read(row), dtype=field.dtype)
                    if value.shape != shape:
                        raise ValueError(f"its shape is {list(value.shape)}, not {list(shape)}")
                except (KeyError, TypeError, ValueError) as error:
                    reason = "it is missing" if isinstance(error, KeyError) else error
                    raise DataError(
                        f"{self.annotation_file}: {annotation_name(row, number)}: cannot read the "
                        f"field {name!r} of DATASETS.CATALOG, {self.name}: {reason}"
                    ) from error
                values[number] = value
        return own

    def _corners(self, index: int, select: Select) -> Tensor:
        """Return selected boxes of an image as float32 xyxy [N, 4], clipped to the image."""
        number = int(self.numbers[index])
        corners = self.table.values("boxes", number, select)
        height, width = self.table.sizes[number].tolist()
        corners[:, 2:] += corners[:, :2]
        return torch.from_numpy(corners.clip(0, [width, height] * 2).astype(np.float32))

    def _target(self, index: int, size: tuple[int, int]) -> Target:
        number, selection = int(self.numbers[index]), self.options.selection
        labels = torch.from_numpy(self.labels(index))
        target: Target = {"boxes": self.boxes(index), "labels": labels}
        with_masks = self.options.train and self.options.masks
        rows: list[Row] = []
        if self.keypoint_names or with_masks or self.options.fields:
            rows = self.table.stored(number, selection.objects)
        if self.keypoint_names:
            shape = (len(labels), len(self.keypoint_names), 3)
            unlabeled = [0] * 3 * len(self.keypoint_names)
            points = np.array([row.get("keypoints") or unlabeled for row in rows], np.float32)
            points = points.reshape(shape)
            points[..., :2] += PIXEL_CENTER
            target["keypoints"] = torch.from_numpy(points)
        if with_masks:
            target["masks"] = PackedMasks.from_segmentations(
                [row["segmentation"] for row in rows], *size, self.options.masks_as_rle
            )
        target |= self._own_fields(rows)
        if self.options.train:
            target["ignored_boxes"] = self._corners(index, selection.ignored)
        if self.proposals is not None:
            target["proposals"] = self.proposals[index]
        return target


class ConcatDataset(data.ConcatDataset[tuple[Tensor, Target]]):
    """Several datasets as one. Raises DataError if their categories or keypoints differ."""

    def __init__(self, datasets: Sequence[CocoDataset]) -> None:
        super().__init__(datasets)
        first = datasets[0]
        for other in datasets[1:]:
            if {*other.options.fields} != {*first.options.fields}:
                raise DataError(
                    f"{other.annotation_file}: the `fields` of its entry of DATASETS.CATALOG "
                    f"differ from those of {first.annotation_file}"
                )
            if other.keypoint_names != first.keypoint_names:
                raise DataError(
                    f"{other.annotation_file}: the keypoints differ from those of "
                    f"{first.annotation_file}"
                )
            labels = str(first.annotation_file), str(other.annotation_file)
            match = CategoryMatch(first.categories, other.categories, labels)
            if {*match.numbers} != {*range(len(first.categories))}:
                raise DataError(
                    f"{other.annotation_file}: the categories differ from those of "
                    f"{first.annotation_file}: {match}. Datasets that are trained on together need "
                    "the same names"
                )
            other.relabel(first.categories, match.numbers)
        self.parts = datasets
        self.name = " + ".join(dataset.name for dataset in datasets)
        self.categories = first.categories
        self.keypoint_names = first.keypoint_names

    def load(
        self, index: int, min_size: MinSize | None = None, cache: ImageCache | None = None
    ) -> tuple[Tensor, Target]:
        """See `CocoDataset.load`."""
        part = bisect_right(self.cumulative_sizes, index)
        first = self.cumulative_sizes[part - 1] if part else 0
        return self.parts[part].load(index - first, min_size, cache)

    @property
    def aspect_ratios(self) -> list[float]:
        """The width / height of the images."""
        return [ratio for dataset in self.parts for ratio in dataset.aspect_ratios]
