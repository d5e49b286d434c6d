"""PASCAL VOC data sets as distributed (http://host.robots.ox.ac.uk/pascal/VOC)."""

from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

from .catalog import DATASETS, Entry, check_fields, converted_file, require
from .voc_xml import read_voc_file

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
    images = require(folder / "JPEGImages", name)
    file = converted_file(root, name, lambda: read_voc(folder, entry["split"], name))
    return file, images


def read_voc(folder: Path, split: str, name: str) -> dict[str, Any]:
    """Return a split of a VOC folder in COCO form. Raises DataError naming the data set."""
    stems = require(folder / "ImageSets" / "Main" / f"{split}.txt", name).read_text().split()
    category_ids = {category: number for number, category in enumerate(CATEGORIES, start=1)}
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": i, "name": category} for category, i in category_ids.items()],
    }
    for stem in stems:
        file = require(folder / "Annotations" / f"{stem}.xml", name)
        voc = read_voc_file(file)
        digits = stem.replace("_", "")
        if not digits.isdecimal():
            raise DataError(f"{file}: the name must be a number, as in VOC: 2008_000007")
        height, width = voc.size
        if not (height and width):
            raise DataError(f"{file}: has no size of the image, but VOC's files do")
        image = {"id": int(digits), "file_name": f"{stem}.jpg", "height": height, "width": width}
        content["images"].append(image)
        for one in voc.objects:
            if one.name not in category_ids:
                raise DataError(f"{file}: {one.name!r} is not a category of PASCAL VOC")
            box = one.box(first=1)
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": image["id"],
                    "category_id": category_ids[one.name],
                    "bbox": list(box),
                    "area": box[2] * box[3],
                    "iscrowd": int(one.difficult),
                }
            )
    return content
