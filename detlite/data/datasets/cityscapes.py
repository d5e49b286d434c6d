"""Instances of Cityscapes as distributed (https://www.cityscapes-dataset.com)."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as rle_codec

from detlite.config import ConfigError
from detlite.data.images.pillow import open_pillow
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from detlite.structures.masks.formats import RLE, encode_bitmap, polygons_to_rle

from .catalog import DATASETS, Entry, check_fields, converted_file, require

# Labels with instances, by Cityscapes' numbers.
CATEGORIES = {
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 29: "caravan", 30: "trailer",
    31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
# Labels of the official evaluation.
EVALUATED = tuple(number for number in CATEGORIES if number not in (29, 30))
# Labels whose pixels the official evaluation ignores. Where a label has instances, its number in
# instanceIds files marks a group.
VOID = {
    0: "unlabeled", 1: "ego vehicle", 2: "rectification border", 3: "out of roi", 4: "static",
    5: "dynamic", 6: "ground", 9: "parking", 10: "rail track", 14: "guard rail", 15: "bridge",
    16: "tunnel", 18: "polegroup", 29: "caravangroup", 30: "trailergroup",
}  # fmt: skip
_SUFFIXES = {"poly": "gtFine_polygons.json", "mask": "gtFine_instanceIds.png"}
# Label, True for a group, segmentation and mask of an object.
_Object = tuple[int, bool, Any, RLE]


@DATASETS.register("cityscapes")
def cityscapes_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: cityscapes, folder: dir, split: train, form: mask, most: 0, all: False}`.

    `form` is the source of the masks: "poly" for the polygons as drawn, "mask" for the visible part
    of each instance. `most` limits the number of images, taken from the whole split; 0: all. `all`
    keeps caravans and trailers, which the official evaluation ignores.
    """
    check_fields(entry, {"folder": str, "split": str, "form": str, "most": int, "all": bool})
    name, folder, split, form = entry["name"], root / entry["folder"], entry["split"], entry["form"]
    if form not in _SUFFIXES:
        raise ConfigError(f"DATASETS.CATALOG, {name}: form is {form!r}, but must be poly or mask")
    images = require(folder / "leftImg8bit" / split, name)
    truth = require(folder / "gtFine" / split, name)
    labels = tuple(CATEGORIES) if entry["all"] else EVALUATED
    file = converted_file(
        root, name, lambda: read_cityscapes(images, truth, form, entry["most"], labels)
    )
    return file, images


def read_cityscapes(
    images: Path,
    truth: Path,
    form: str = "mask",
    max_images: int = 0,
    labels: tuple[int, ...] = EVALUATED,
) -> dict[str, Any]:
    """Return a split of Cityscapes in COCO format; groups of objects are crowds.

    Each image has an additional field `void`: the RLE of the pixels that the official evaluation
    ignores, which `evaluate_cityscapes` reads.
    """
    files = sorted(images.glob("*/*_leftImg8bit.png"))
    if not files:
        raise DataError(f"{images}: there are no images <city>/*_leftImg8bit.png")
    if max_images:
        files = files[:: len(files) // max_images + 1]
    category_ids = {label: number for number, label in enumerate(labels, start=1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": category_ids[label], "name": CATEGORIES[label]} for label in labels],
    }
    for image_id, file in enumerate(files, start=1):
        name = file.relative_to(images)
        source = truth / str(name).replace("leftImg8bit.png", _SUFFIXES[form])
        try:
            with open_pillow(file) as image:
                width, height = image.size
            read_objects = _read_polygons if form == "poly" else _read_instances
            objects, void = read_objects(source, height, width)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}: cannot be read: {error}") from error
        image_row = {"id": image_id, "file_name": str(name), "height": height, "width": width}
        content["images"].append({**image_row, "void": encode_bitmap(void)})
        for label, crowd, segmentation, rle in objects:
            area = int(rle_codec.area(rle))
            if label not in category_ids or not area:
                continue
            annotation = {
                "id": len(content["annotations"]) + 1,
                "image_id": image_id,
                "category_id": category_ids[label],
                "bbox": rle_codec.toBbox(rle).astype(int).tolist(),
                "area": area,
                "segmentation": segmentation,
                "iscrowd": int(crowd),
            }
            content["annotations"].append(annotation)
    return content


def _read_polygons(file: Path, height: int, width: int) -> tuple[list[_Object], np.ndarray]:
    """Return the objects as drawn, and a bitmap of the visible void pixels."""
    labels = {name: label for label, name in CATEGORIES.items()}
    void = Image.new("1", (width, height), 1)
    canvas = ImageDraw.Draw(void)
    objects: list[_Object] = []
    for row in read_json(file)["objects"]:
        # License plates belong to the cars behind them.
        if row.get("deleted", 0) or len(row["polygon"]) < 3 or row["label"] == "license plate":
            continue
        polygon = [float(value) for point in row["polygon"] for value in point]
        canvas.polygon(polygon, fill=int(row["label"] in VOID.values()))
        name = row["label"].removesuffix("group")
        if name in labels:
            rle = polygons_to_rle([polygon], height, width)
            objects.append((labels[name], name != row["label"], [polygon], rle))
    return objects, np.asarray(void)


def _read_instances(file: Path, height: int, width: int) -> tuple[list[_Object], np.ndarray]:
    """Return the objects of an instanceIds file, and a bitmap of the void pixels.

    A pixel is label * 1000 + n in an instance, and otherwise (also in a group) the label.
    """
    with open_pillow(file) as image:
        pixels = np.asarray(image)
    if pixels.shape != (height, width):
        raise ValueError(f"its size is {pixels.shape}, but the image has {(height, width)}")
    objects: list[_Object] = []
    for number in np.unique(pixels).tolist():
        group = number < 1000
        label = number if group else number // 1000
        if label in CATEGORIES:
            rle = encode_bitmap(pixels == number)
            objects.append((label, group, rle, rle))
    return objects, np.isin(pixels, list(VOID))
