"""PASCAL VOC data sets as they are distributed (http://host.robots.ox.ac.uk/pascal/VOC)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detlite.apps.dataset_formats.voc_xml import read_voc_file
from detlite.data.errors import DataError

from .catalog import DATASETS, Entry, check_fields
from .converted import converted_file, existing

CATEGORIES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


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
        found = read_voc_file(file)
        digits = picture.replace("_", "")
        if not digits.isdecimal():
            raise DataError(f"{file}: VOC's own names are numbers, such as 2008_000007")
        image_id = int(digits)
        height, width = found.size
        content["images"].append(
            {"id": image_id, "file_name": f"{picture}.jpg", "height": height, "width": width}
        )
        for one in found.objects:
            if one.name not in numbers:
                raise DataError(f"{file}: {one.name!r} is no category of PASCAL VOC")
            box = one.box(first=1)
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image_id,
                    "category_id": numbers[one.name],
                    "bbox": list(box),
                    "area": box[2] * box[3],
                    "iscrowd": int(one.difficult),
                }
            )
    return content
