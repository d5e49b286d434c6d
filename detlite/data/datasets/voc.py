"""PASCAL VOC datasets as distributed (http://host.robots.ox.ac.uk/pascal/VOC)."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

from .catalog import DATASETS, Entry, check_fields, converted_file, require

CATEGORIES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_ROTATED_KEYS = ("cx", "cy", "w", "h", "angle")  # of roLabelImg's boxes


@DATASETS.register("voc")
def voc_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: voc, folder: voc/VOC2007, split: train}`: boxes, no masks.

    Difficult objects become crowds: they are not trained on, and ignored in evaluation.
    """
    check_fields(entry, {"folder": str, "split": str})
    folder, name = root / entry["folder"], entry["name"]
    images = require(folder / "JPEGImages", name)
    file = converted_file(root, name, lambda: read_voc(folder, entry["split"], name))
    return file, images


def read_voc(folder: Path, split: str, name: str) -> dict[str, Any]:
    """Return a split of a VOC folder in COCO format. Raises DataError with the dataset's name."""
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
        for item in voc.objects:
            if item.problem:
                raise DataError(f"{file}: object {item.name!r}: {item.problem}")
            if item.name not in category_ids:
                raise DataError(f"{file}: {item.name!r} is not a category of PASCAL VOC")
            box = item.box(first=1)
            annotation = {
                "id": len(content["annotations"]) + 1,
                "image_id": image["id"],
                "category_id": category_ids[item.name],
                "bbox": list(box),
                "area": box[2] * box[3],
                "iscrowd": int(item.difficult),
            }
            content["annotations"].append(annotation)
    return content


@dataclass(frozen=True)
class VocObject:
    """An `<object>` element.

    Attributes:
        corners: (x1, y1, x2, y2) as written; () if they cannot be read.
        polygon: the outline (x1, y1, x2, y2, x3, ...) of Roboflow, or of a box that is rotated by
            roLabelImg or by CVAT's attribute "rotation".
        problem: why the element is invalid.
    """

    name: str
    difficult: bool = False
    corners: Sequence[float] = ()
    polygon: Sequence[float] = ()
    problem: str = ""

    def box(self, first: float) -> tuple[float, float, float, float]:
        """Return (x, y, width, height), where `first` is the number of the first pixel.

        With 1, as in VOC, the last pixel belongs to the object. With 0, corners are continuous.
        """
        x1, y1, x2, y2 = self.corners
        return x1 - first, y1 - first, x2 - x1 + first, y2 - y1 + first


@dataclass(frozen=True)
class VocFile:
    """The content of an XML file, which LabelImg, CVAT and others write too.

    Attributes:
        folder, file_name: of the image.
        size: (height, width); 0 if the writer did not know it.
        objects: in their order.
        continuous: the corners are written with decimals, so they are not pixel indices.
    """

    folder: str
    file_name: str
    size: tuple[int, int]
    objects: Sequence[VocObject]
    continuous: bool


def read_voc_file(file: Path) -> VocFile:
    """Read an XML file. Raises DataError."""
    try:
        tree = ET.parse(file).getroot()
        size = [round(_number(tree, f"size/{side}", "0")) for side in ("height", "width")]
        objects = [_read_object(node) for node in tree.iter("object")]
        paths = [
            *(f"object/bndbox/{side}" for side in _SIDES),
            "object/polygon/*",
            "object/robndbox/*",
        ]
        continuous = any("." in (node.text or "") for path in paths for node in tree.findall(path))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except ET.ParseError as error:
        raise DataError(f"{file}: is not XML: {error}") from error
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    folder, name = (tree.findtext(key, "").strip() for key in ("folder", "filename"))
    return VocFile(folder, name, (size[0], size[1]), objects, continuous)


def _read_object(node: ET.Element) -> VocObject:
    name, corners = node.findtext("name", "").strip(), list[float]()
    try:
        if node.find("robndbox") is None:
            x1, y1, x2, y2 = corners = [_number(node, f"bndbox/{side}") for side in _SIDES]
            polygon = [_number(value, ".") for value in node.findall("polygon/*")]
            attributes = {item.findtext("name"): item for item in node.iter("attribute")}
            rotation = attributes.get("rotation")
            if rotation is not None and (degrees := _number(rotation, "value", "0")):
                center = (x1 + x2) / 2, (y1 + y2) / 2
                polygon = _rotated_box(*center, x2 - x1, y2 - y1, math.radians(degrees))
        else:
            polygon = [_number(child, ".") for child in node.findall("robndbox/*")]
            if len(polygon) != 8:  # DIOR-R's files
                polygon = _rotated_box(*(_number(node, f"robndbox/{key}") for key in _ROTATED_KEYS))
            corners = polygon
        corners = [side(corners[k::2]) for side in (min, max) for k in (0, 1)]  # any two opposite
        return VocObject(_text(node, "name"), _is_true(node, "difficult"), corners, polygon)
    except ValueError as error:
        return VocObject(name, corners=corners, problem=str(error))


def _rotated_box(x: float, y: float, w: float, h: float, angle: float) -> list[float]:
    """Return the corners of a box with the center (x, y), rotated clockwise by radians."""
    cos, sin = math.cos(angle) / 2, math.sin(angle) / 2
    signs = (-1, -1), (1, -1), (1, 1), (-1, 1)
    shifts = ((a * w * cos - b * h * sin, a * w * sin + b * h * cos) for a, b in signs)
    return [value for dx, dy in shifts for value in (x + dx, y + dy)]


def _text(node: ET.Element, path: str) -> str:
    text = node.findtext(path)
    if text is None:
        raise ValueError(f"an element <{node.tag}> has no {path}")
    return text.strip()


def _number(node: ET.Element, path: str, default: str | None = None) -> float:
    text = (node.findtext(path, "").strip() or default) if default else _text(node, path)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path} is {text!r}, not a number")
    return value


def _is_true(node: ET.Element, path: str) -> bool:
    text = node.findtext(path, "").strip().lower()
    if text in ("", "0", "false", "no", "none", "unspecified"):
        return False
    if text in ("1", "true", "yes"):
        return True
    raise ValueError(f"{path} is {text!r}, not 0 or 1")
