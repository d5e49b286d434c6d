"""The record that all formats are read into, its conversion to COCO, and helpers of the readers."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.datasets.coco_checks import fill_missing
from detlite.data.errors import DataError
from detlite.data.loading.image_io import image_size
from detlite.data.loading.image_readers import image_suffixes
from detlite.structures.masks.formats import Segmentation, encode_bitmap

_DECIMALS = 3  # of coordinates in pixels


@dataclass(frozen=True)
class LabeledObject:
    """An object in an image.

    Attributes:
        category: its name.
        box: (x, y, width, height) in pixels.
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] in pixels, or an RLE; None if unknown.
        crowd: skipped in training and ignored in evaluation.
    """

    category: str
    box: tuple[float, float, float, float]
    segmentation: Segmentation | None = None
    crowd: bool = False


@dataclass(frozen=True)
class LabeledImage:
    """An image file, its (height, width) and its objects."""

    file: Path
    size: tuple[int, int]
    objects: Sequence[LabeledObject]


@dataclass(frozen=True)
class LabeledDataset:
    """The images of a dataset.

    Attributes:
        source: the folder or file that was read, for messages.
        images: in any order.
        categories: names in the order of their ids; None: the names that occur, sorted.
    """

    source: Path
    images: Sequence[LabeledImage]
    categories: Sequence[str] | None = None

    @property
    def image_folder(self) -> Path:
        """The deepest folder that contains all images."""
        return Path(os.path.commonpath([image.file.parent for image in self.images]))


def to_coco(dataset: LabeledDataset, categories: Sequence[str] | None = None) -> dict[str, Any]:
    """Convert a dataset to the content of a COCO file; equal datasets give equal contents.

    Ids start at 1: images are sorted by path, and annotations follow their images. File names are
    relative to `dataset.image_folder`.

    Args:
        dataset: the dataset.
        categories: category names of another dataset in the order of their ids, to use its ids.

    Raises:
        DataError: there are no images or objects, an object has another category, or two files
            label the same image.
    """
    if not dataset.images:
        raise DataError(f"{dataset.source}: contains no images")
    names = categories or dataset.categories
    if names is None:
        names = sorted({obj.category for image in dataset.images for obj in image.objects})
    ids = {name: number for number, name in enumerate(names, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    folder = dataset.image_folder
    named = [(image.file.relative_to(folder).as_posix(), image) for image in dataset.images]
    for name, image in sorted(named, key=lambda pair: pair[0]):
        if images and images[-1]["file_name"] == name:
            raise DataError(f"{image.file}: two files label this image: remove one")
        height, width = image.size
        image_id = len(images) + 1
        images.append({"id": image_id, "file_name": name, "height": height, "width": width})
        for obj in image.objects:
            if obj.category not in ids:
                raise DataError(
                    f"{image.file}: the category {obj.category!r} of an object is not one of "
                    f"{', '.join(names)}"
                )
            row = {
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": ids[obj.category],
                "bbox": _rounded(obj.box),
                "iscrowd": int(obj.crowd),
            }
            if isinstance(obj.segmentation, list):
                row["segmentation"] = [_rounded(polygon) for polygon in obj.segmentation]
            elif obj.segmentation is not None:
                row["segmentation"] = obj.segmentation
            annotations.append(row)
    if not annotations:
        raise DataError(f"{dataset.source}: none of {len(images)} images has a labeled object")
    rows = [{"id": number, "name": name} for name, number in ids.items()]
    return fill_missing({"images": images, "annotations": annotations, "categories": rows})


def object_from_corners(
    category: str, corners: Sequence[float], size: tuple[int, int], where: str, polygon: bool
) -> LabeledObject:
    """Return the object with the corners [x1, y1, x2, y2, ...], clipped to the image.

    Args:
        polygon: the corners form a polygon; False: only their bounding box is known.

    Raises:
        DataError: nothing is left inside the image.
    """
    height, width = size
    clipped = [
        min(max(value, 0.0), float(height if index % 2 else width))
        for index, value in enumerate(corners)
    ]
    box = bounding_box([clipped])
    if min(box[2:]) <= 0:
        raise DataError(f"{where}: the object has no area inside the {width}x{height} image")
    return LabeledObject(category, box, [clipped] if polygon else None)


def object_from_bitmap(category: str, bitmap: np.ndarray, where: str) -> LabeledObject:
    """Return the object with the mask bool [H, W], which must not be empty."""
    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    if not len(rows):
        raise DataError(f"{where}: the mask is empty: no pixel of the object is set; remove it")
    x, y = float(columns[0]), float(rows[0])
    box = (x, y, float(columns[-1] + 1) - x, float(rows[-1] + 1) - y)
    return LabeledObject(category, box, encode_bitmap(bitmap))


def bounding_box(polygons: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """Return the box (x, y, width, height) of polygons [x1, y1, x2, y2, ...]."""
    xs = [value for polygon in polygons for value in polygon[0::2]]
    ys = [value for polygon in polygons for value in polygon[1::2]]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def check_size(image: Path, expected: tuple[int, int], file: Path) -> tuple[int, int]:
    """Return the (height, width) of an image, which must be the expected size of `file`.

    Raises:
        DataError: the sizes differ, or the image cannot be read.
    """
    size = image_size(image)
    if expected != size:
        raise DataError(
            f"{file}: its size is {expected[1]}x{expected[0]} (width x height), but {image} is "
            f"{size[1]}x{size[0]}"
        )
    return size


def images_under(folder: Path, exclude: Iterable[Path] = ()) -> list[Path]:
    """List the image files in a folder and its subfolders, except hidden and excluded ones."""
    excluded, suffixes = set(exclude), image_suffixes()
    images: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and Path(parent, name) not in excluded
        ]
        images += [Path(parent, name) for name in names if Path(name).suffix.lower() in suffixes]
    return sorted(images)


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not text in UTF-8 ({error})") from error


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, _DECIMALS) for value in values]
