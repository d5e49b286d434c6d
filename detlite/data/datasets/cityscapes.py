"""Instances of Cityscapes as it is distributed (https://www.cityscapes-dataset.com)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as rle_codec

from detlite.config import ConfigError
from detlite.data.errors import DataError
from detlite.structures.masks.formats import RLE, encode_bitmap, polygons_to_rle

from .catalog import DATASETS, Entry, check_fields
from .converted import converted_file, require

# The labels that have instances, by Cityscapes' numbers.
CATEGORIES = {
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    29: "caravan",
    30: "trailer",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
# What the official evaluation counts.
EVALUATED = tuple(number for number in CATEGORIES if number not in (29, 30))
# What it leaves out: of pixels of these labels nothing is known. A number of two digits stands for
# a group where the label has instances.
VOID = {
    0: "unlabeled",
    1: "ego vehicle",
    2: "rectification border",
    3: "out of roi",
    4: "static",
    5: "dynamic",
    6: "ground",
    9: "parking",
    10: "rail track",
    14: "guard rail",
    15: "bridge",
    16: "tunnel",
    18: "polegroup",
    29: "caravangroup",
    30: "trailergroup",
}
_ENDINGS = {"poly": "gtFine_polygons.json", "mask": "gtFine_instanceIds.png"}
# Label, whether it is a group, segmentation and mask of an object
_Found = tuple[int, bool, Any, RLE]


@DATASETS.register("cityscapes")
def cityscapes_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: cityscapes, folder: dir, split: train, form: mask, most: 0, all: False}`.

    `form` says what masks are read from: "poly", the polygons as they were drawn, or "mask", what
    is visible of each instance. `most` pictures from all over the split are taken; 0: all. `all`
    keeps caravans and trailers, which the official evaluation does not count.
    """
    check_fields(entry, {"folder": str, "split": str, "form": str, "most": int, "all": bool})
    name, folder, split = entry["name"], root / entry["folder"], entry["split"]
    if entry["form"] not in _ENDINGS:
        raise ConfigError(
            f"DATASETS.CATALOG, {name}: form is {entry['form']!r}, but must be poly or mask"
        )
    pictures = require(folder / "leftImg8bit" / split, name)
    truth = require(folder / "gtFine" / split, name)
    numbers = tuple(CATEGORIES) if entry["all"] else EVALUATED
    file = converted_file(
        root, name, lambda: read_cityscapes(pictures, truth, entry["form"], entry["most"], numbers)
    )
    return file, pictures


def read_cityscapes(
    pictures: Path,
    truth: Path,
    form: str = "mask",
    most: int = 0,
    numbers: tuple[int, ...] = EVALUATED,
) -> dict[str, Any]:
    """A split of Cityscapes in COCO's form; groups of objects are crowds.

    Each image has a field more: `void`, the RLE of the pixels that the official evaluation leaves
    out, which `evaluate_cityscapes` reads.

    `pictures` is leftImg8bit/<split>, with a folder for each city, and `truth` gtFine/<split>. The
    labels `numbers` become categories, numbered from 1 in this order. The rest is as in an entry.

    Raises:
        DataError: no pictures, or a file that is missing or cannot be read.
    """
    files = sorted(pictures.glob("*/*_leftImg8bit.png"))
    if not files:
        raise DataError(f"{pictures}: has no pictures <city>/*_leftImg8bit.png")
    if most:
        files = files[:: len(files) // most + 1]
    ids = {number: place for place, number in enumerate(numbers, start=1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": ids[number], "name": CATEGORIES[number]} for number in numbers],
    }
    for image_id, file in enumerate(files, start=1):
        name = file.relative_to(pictures)
        source = truth / str(name).replace("leftImg8bit.png", _ENDINGS[form])
        try:
            with Image.open(file) as picture:
                width, height = picture.size
            read = _polygons if form == "poly" else _instances
            found, void = read(source, height, width)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}: cannot be read: {error}") from error
        content["images"].append(
            {
                "id": image_id,
                "file_name": str(name),
                "height": height,
                "width": width,
                "void": encode_bitmap(void),
            }
        )
        for number, crowd, segmentation, rle in found:
            area = int(rle_codec.area(rle))
            if number not in ids or not area:
                continue
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image_id,
                    "category_id": ids[number],
                    "bbox": rle_codec.toBbox(rle).astype(int).tolist(),
                    "area": area,
                    "segmentation": segmentation,
                    "iscrowd": int(crowd),
                }
            )
    return content


def _polygons(file: Path, height: int, width: int) -> tuple[list[_Found], np.ndarray]:
    """The objects as they were drawn, and a bitmap of the void that is left to see."""
    labels = {name: number for number, name in CATEGORIES.items()}
    void = Image.new("1", (width, height), 1)
    canvas = ImageDraw.Draw(void)
    found: list[_Found] = []
    for row in json.loads(file.read_text())["objects"]:
        # Licence plates are part of the cars behind them.
        if row.get("deleted", 0) or len(row["polygon"]) < 3 or row["label"] == "license plate":
            continue
        polygon = [float(value) for point in row["polygon"] for value in point]
        canvas.polygon(polygon, fill=int(row["label"] in VOID.values()))
        label = row["label"].removesuffix("group")
        if label in labels:
            try:
                rle = polygons_to_rle([polygon], height, width)
            except ValueError as error:
                raise DataError(f"{file}: {error}") from error
            found.append((labels[label], label != row["label"], [polygon], rle))
    return found, np.asarray(void)


def _instances(file: Path, height: int, width: int) -> tuple[list[_Found], np.ndarray]:
    """The same from a picture of numbers: label * 1000 + n, or label for a group and the rest."""
    with Image.open(file) as picture:
        pixels = np.asarray(picture)
    if pixels.shape != (height, width):
        raise ValueError(f"its size is {pixels.shape}, that of the picture {(height, width)}")
    found: list[_Found] = []
    for number in np.unique(pixels).tolist():
        group = number < 1000
        label = number if group else number // 1000
        if label in CATEGORIES:
            rle = encode_bitmap(pixels == number)
            found.append((label, group, rle, rle))
    return found, np.isin(pixels, list(VOID))
