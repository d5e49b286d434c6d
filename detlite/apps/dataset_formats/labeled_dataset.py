"""What every format says of a data set, and the same in COCO's form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from detlite.data.datasets.coco_checks import fill_missing
from detlite.data.errors import DataError
from detlite.structures.masks.formats import Segmentation

_DECIMALS = 3  # of coordinates in pixels


@dataclass(frozen=True)
class LabelledObject:
    """An object of a picture.

    Attributes:
        category: its name.
        box: (x, y, width, height) in pixels.
        segmentation: polygons [[x1, y1, x2, y2, ...], ...] in pixels, or an RLE; None: not known.
        crowd: left out of training, ignored in evaluation.
    """

    category: str
    box: tuple[float, float, float, float]
    segmentation: Segmentation | None = None
    crowd: bool = False


@dataclass(frozen=True)
class LabelledPicture:
    """A picture file, its (height, width) and its objects."""

    file: Path
    size: tuple[int, int]
    objects: Sequence[LabelledObject]


@dataclass(frozen=True)
class LabelledSet:
    """The pictures of a data set.

    Attributes:
        source: the folder or file that it was read from, for messages.
        pictures: in any order.
        categories: names in the order of their ids; None: those that occur, by name.
    """

    source: Path
    pictures: Sequence[LabelledPicture]
    categories: Sequence[str] | None = None

    @property
    def category_names(self) -> list[str]:
        """The names in the order of their ids."""
        if self.categories is not None:
            return list(self.categories)
        return sorted({one.category for picture in self.pictures for one in picture.objects})


def coco_content(found: LabelledSet, categories: Sequence[str] | None = None) -> dict[str, Any]:
    """A set in COCO's form; the same set always gives the same content.

    Ids count from 1: images in the order of their paths, annotations in that of their images.
    File names are relative to `image_folder(found)`.

    Args:
        found: the set.
        categories: names that another set has given ids, in their order; None: the set's own.

    Raises:
        DataError: there is no picture, no object, or one of another category; or a picture is
            labelled twice.
    """
    names = list(categories or found.category_names)
    numbers = {name: number for number, name in enumerate(names, start=1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }
    if not found.pictures:
        raise DataError(f"{found.source}: there is no picture")
    folder = image_folder(found)
    named: dict[str, LabelledPicture] = {}
    for picture in found.pictures:
        name = picture.file.relative_to(folder).as_posix()
        if name in named:
            raise DataError(
                f"{picture.file}: two files have labels of this picture: remove or join one of them"
            )
        named[name] = picture
    for image_id, name in enumerate(sorted(named), start=1):
        picture = named[name]
        height, width = picture.size
        content["images"].append(
            {"id": image_id, "file_name": name, "height": height, "width": width}
        )
        for one in picture.objects:
            if one.category not in numbers:
                raise DataError(
                    f"{picture.file}: has an object of category {one.category!r}, which is none "
                    f"of {', '.join(names)}"
                )
            row = {
                "id": len(content["annotations"]) + 1,
                "image_id": image_id,
                "category_id": numbers[one.category],
                "bbox": [round(value, _DECIMALS) for value in one.box],
                "iscrowd": int(one.crowd),
            }
            if isinstance(one.segmentation, list):
                row["segmentation"] = [
                    [round(value, _DECIMALS) for value in polygon] for polygon in one.segmentation
                ]
            elif one.segmentation is not None:
                row["segmentation"] = one.segmentation
            content["annotations"].append(row)
    if not content["annotations"]:
        raise DataError(f"{found.source}: none of {len(named)} pictures has a labelled object")
    return fill_missing(content)


def image_folder(found: LabelledSet) -> Path:
    """The deepest folder that holds all pictures of a set."""
    return Path(os.path.commonpath([picture.file.parent for picture in found.pictures]))


def box_around(polygons: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """The box (x, y, width, height) of the corners of polygons [x1, y1, x2, y2, ...]."""
    xs = [value for polygon in polygons for value in polygon[0::2]]
    ys = [value for polygon in polygons for value in polygon[1::2]]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def pictures_under(folder: Path, without: Iterable[Path] = ()) -> list[Path]:
    """The picture files in a folder and all folders in it, by path.

    But for folders `without`, and those whose name begins with a dot.
    """
    skipped = set(without)
    suffixes = picture_suffixes()
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and Path(place, name) not in skipped
        ]
        found += [Path(place, name) for name in names if Path(name).suffix.lower() in suffixes]
    return sorted(found)


def picture_suffixes() -> set[str]:
    """How the names of picture files end: `.jpg`, `.png`, ..."""
    formats = Image.registered_extensions()
    return {suffix for suffix, kind in formats.items() if kind in Image.OPEN}
