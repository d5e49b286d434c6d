"""Datasets that are not files: their images and objects come from an object in Python."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from .builtin_entries import Entry
from .catalog import converted_file


class Items(Protocol):
    """The items of a dataset.

    It is pickled to loader processes, so open files in them at first use. `str(items)` names the
    items in messages; equal items must have equal names.

    Attributes:
        categories: names of the categories 1, 2, ...
    """

    categories: Sequence[str]

    def __len__(self) -> int:
        """Return the number of images."""

    def image(self, index: int) -> np.ndarray:
        """Return an image [H, W] or RGB [H, W, 3]."""

    def target(self, index: int) -> Iterable[Mapping[str, Any]]:
        """Return the objects of an image as annotations of COCO: `category_id`, `bbox`, ..."""


def item_files(entry: Entry, root: Path, items: Items) -> tuple[Path, "ItemFolder"]:
    """Return the annotation file of items, written at first use, and their images.

    For a function that is registered in DATASETS. Images have the ids `items.ids`, or 1, 2, ...
    """
    file = converted_file(root, entry["name"], lambda: _content(items))
    return file, ItemFolder(items)


def _content(items: Items) -> dict[str, Any]:
    ids = getattr(items, "ids", range(1, len(items) + 1))
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    for index, image_id in zip(range(len(items)), ids, strict=True):
        height, width = items.image(index).shape[:2]
        size = {"height": int(height), "width": int(width)}
        images.append({"id": image_id, "file_name": str(index), **size})
        for row in items.target(index):
            annotations.append({"id": len(annotations) + 1, **row, "image_id": image_id})
    categories = [{"id": k, "name": name} for k, name in enumerate(items.categories, start=1)]
    return {"images": images, "categories": categories, "annotations": annotations}


@dataclass(frozen=True)
class ItemFolder:
    """The images of items, as a folder of stored images with the indices as names."""

    items: Items

    def __truediv__(self, name: str) -> "ItemImage":
        return ItemImage(self.items, int(name))

    def __str__(self) -> str:
        return str(self.items)


@dataclass(frozen=True)
class ItemImage:
    """An image of items, as a StoredImage."""

    items: Items
    index: int

    def __str__(self) -> str:
        return f"{self.items}, image {self.index}"

    def read_bytes(self) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(self.items.image(self.index)).save(stream, "TIFF")
        return stream.getvalue()
