"""PASCAL VOC data sets as they are distributed (http://host.robots.ox.ac.uk/pascal/VOC)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from .catalog import DATASETS, Entry, check_fields
from .converted import converted_file, existing
from .errors import DataError

CATEGORIES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
_SIDES = ("xmin", "ymin", "xmax", "ymax")


@DATASETS.register("voc")
def voc_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: voc, folder: voc/VOC2007, split: train}`: boxes, no masks.

    Difficult objects become crowds: left out of training, ignored in evaluation.
    """
    check_fields(entry, {"folder": str, "split": str})
    folder, name = root / entry["folder"], entry["name"]
    pictures = existing(folder / "JPEGImages", name)
    file = converted_file(root, name, lambda: read_voc(folder, entry["split"], name))
    return file, pictures


def read_voc(folder: Path, split: str, name: str) -> dict[str, Any]:
    """A split of a VOC folder in COCO's form; `name` of the data set is for messages.

    Raises:
        DataError: a file that is missing or cannot be read, or an unknown category.
    """
    pictures = existing(folder / "ImageSets" / "Main" / f"{split}.txt", name).read_text().split()
    numbers = {category: number for number, category in enumerate(CATEGORIES, start=1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": category} for category, number in numbers.items()],
    }
    for picture in pictures:
        file = existing(folder / "Annotations" / f"{picture}.xml", name)
        try:
            tree = ET.parse(file).getroot()
            image_id = int(picture.replace("_", ""))
            content["images"].append(
                {
                    "id": image_id,
                    "file_name": f"{picture}.jpg",
                    "height": int(_text(tree, "size/height")),
                    "width": int(_text(tree, "size/width")),
                }
            )
            for node in tree.iter("object"):
                x1, y1, x2, y2 = (float(_text(node, f"bndbox/{side}")) for side in _SIDES)
                # Pixels are counted from 1, and the last one belongs to the object.
                box = [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]
                content["annotations"].append(
                    {
                        "id": len(content["annotations"]) + 1,
                        "image_id": image_id,
                        "category_id": numbers[_text(node, "name")],
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": int(node.findtext("difficult", "0")),
                    }
                )
        except ET.ParseError as error:
            raise DataError(f"{file}: is not XML: {error}") from error
        except KeyError as error:
            raise DataError(f"{file}: {error} is no category of PASCAL VOC") from error
        except ValueError as error:
            raise DataError(f"{file}: {error}") from error
    return content


def _text(node: ET.Element, path: str) -> str:
    found = node.findtext(path)
    if found is None:
        raise ValueError(f"an element <{node.tag}> has no {path}")
    return found.strip()
