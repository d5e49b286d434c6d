"""Read PASCAL VOC's XML files, which LabelImg, CVAT, Roboflow and others write too.

Masks in `SegmentationObject` are matched to boxes by IoU.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as rle_codec

from detlite.data.annotations.ids import parse_number
from detlite.data.datasets.builtin_entries import VOC_CATEGORIES
from detlite.data.datasets.catalog import DATASETS, Entry, check_fields, converted_file, require
from detlite.data.images.reading import image_size
from detlite.files.errors import DataError
from detlite.structures.masks.rle import tight_bounds

from .file_tree import FileTree, read_lines, read_xml
from .label_images import VOID, distinct_values, read_label_image
from .labeled_dataset import Conversion, LabeledDataset, LabeledImage, to_coco
from .shapes import ImageLabels, Shape, bounding_box, rotated_box, to_objects

_MIN_IOU = 0.5  # of a box and the bounding box of its mask
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_ROTATED_KEYS = ("cx", "cy", "w", "h", "angle")  # of roLabelImg's boxes
_CORNERS = (*(f"object/bndbox/{side}" for side in _SIDES), "object/polygon/*", "object/robndbox/*")
_MARKS = {"": False, "0": False, "1": True, "false": False, "true": True, "unspecified": False}


@DATASETS.register("voc")
def voc_files(entry: Entry, root: Path) -> tuple[Path, Path]:
    """`{name, type: voc, folder: voc/VOC2007, split: train}`: boxes, no masks.

    Difficult objects become crowds: they are not trained on, and ignored in evaluation.
    """
    check_fields(entry, {"folder": str, "split": str})
    folder, name = root / entry["folder"], entry["name"]
    images = require(folder / "JPEGImages", name)
    file = converted_file(root, name, lambda: _read_split(folder, entry["split"], name))
    return file, images


def _read_split(folder: Path, split: str, name: str) -> dict[str, Any]:
    """Return a split of a VOC folder in COCO format; the digits of file names are the ids."""
    listed = read_lines(require(folder / "ImageSets" / "Main" / f"{split}.txt", name))
    images, conversion = [], Conversion()
    for stem in " ".join(listed).split():
        file = require(folder / "Annotations" / f"{stem}.xml", name)
        labels = _labels(file, read_xml(file), first=1)
        if not stem.replace("_", "").isdecimal():
            raise DataError(f"{file}: the name must be a number, as in VOC: 2008_000007")
        if not all(labels.size):
            raise DataError(f"{file}: has no size of the image, but VOC's files do")
        height, width = map(round, labels.size)
        objects = to_objects(labels.shapes, (height, width), str(file), conversion)
        for category in {obj.category for obj in objects} - {*VOC_CATEGORIES}:
            raise DataError(f"{file}: {category!r} is not a category of PASCAL VOC")
        images.append(LabeledImage(folder / f"JPEGImages/{stem}.jpg", (height, width), objects))
    for problem in conversion.bad:
        raise DataError(problem)
    content = to_coco(LabeledDataset(folder, images, VOC_CATEGORIES))
    for row in content["images"]:
        row["id"] = int(Path(row["file_name"]).stem.replace("_", ""))
    for row in content["annotations"]:
        row["image_id"] = content["images"][row["image_id"] - 1]["id"]
    return content


def voc_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the image of a file.

    Difficult objects become crowds. Coordinates with decimals are continuous. Integer coordinates
    are pixel numbers: the first pixel is 1, as in VOC, or 0 if a value in the dataset is below 1.
    """
    root = read_xml(file)
    labels = _labels(file, root, 0 if _has_decimals(root) else _first_pixel(tree))
    for shape in labels.shapes:
        if shape.crowd:
            text = "They become crowds (iscrowd 1), which VOC does not measure either."
            example = f"{file} ({shape.category})"
            conversion.findings.add("difficult objects", text, example, "object")
    for folder in (file.parent.parent, file.parent):
        masks = folder / "SegmentationObject" / f"{file.stem}.png"
        if masks.is_file():
            image = tree.image(labels.name, file, one_each=True)
            _add_masks(labels.shapes, masks, image_size(image, conversion.upright), conversion)
            break
    yield labels


def _labels(file: Path, root: ET.Element, first: float) -> ImageLabels:
    """Read the labels of an image. `first` is the number of the first pixel.

    With 1, as in VOC, the last pixel belongs to the object. With 0, corners are continuous.
    """
    folder, name = (root.findtext(key, "").strip() for key in ("folder", "filename"))
    try:
        size = [_number(root, f"size/{side}", "0") for side in ("height", "width")]
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    shapes = [_shape(node, first) for node in root.iter("object")]
    return ImageLabels(f"{folder}/{name}".strip("/"), shapes, size)


def _shape(node: ET.Element, first: float) -> Shape:
    """Read an `<object>`."""
    shape = Shape(node.findtext("name", "").strip())
    try:
        shape.corners, shape.polygon = _outline(node, first)
        _text(node, "name")
        difficult = node.findtext("difficult", "").strip().lower()
        if difficult not in _MARKS:
            raise ValueError(f"difficult is {difficult!r}, not 0 or 1")
        shape.crowd = _MARKS[difficult]
    except ValueError as error:
        shape.problem = str(error)
    return shape


def _outline(node: ET.Element, first: float) -> tuple[list[float], bool]:
    """Return the corners of an object, and True for a polygon or a rotated box."""
    if node.find("robndbox") is not None:
        corners = [_number(child, ".") - first for child in node.findall("robndbox/*")]
        if len(corners) == 8:  # DIOR-R's files
            return corners, True
        x, y, w, h, angle = (_number(node, f"robndbox/{key}") for key in _ROTATED_KEYS)
        box = x - w / 2 - first, y - h / 2 - first, w, h
        return rotated_box(box, math.degrees(angle)), True
    x1, y1, x2, y2 = (_number(node, f"bndbox/{side}") for side in _SIDES)
    # They may be any two opposite corners.
    x, y = min(x1, x2) - first, min(y1, y2) - first
    w, h = abs(x2 - x1) + first, abs(y2 - y1) + first
    if polygon := [_number(value, ".") - first for value in node.findall("polygon/*")]:
        return polygon, True  # of Roboflow
    # Not `iter`: objects nested in objects would be visited once for each of them.
    for item in (*node.findall("attributes/attribute"), *node.findall("attribute")):
        if item.findtext("name") == "rotation" and (degrees := _number(item, "value", "0")):
            return rotated_box((x, y, w, h), degrees), True  # of CVAT
    return [x, y, x + w, y + h], False


def _text(node: ET.Element, path: str) -> str:
    text = node.findtext(path)
    if text is None:
        raise ValueError(f"an element <{node.tag}> has no {path}")
    return text.strip()


def _number(node: ET.Element, path: str, default: str = "") -> float:
    text = (node.findtext(path, "").strip() or default) if default else _text(node, path)
    value = parse_number(text)
    if value is None:
        raise ValueError(f"{path} is {text!r}, not a number")
    return value


def _has_decimals(root: ET.Element) -> bool:
    """Return True if corners are written with decimals, so they are not numbers of pixels."""
    return any("." in (node.text or "") for path in _CORNERS for node in root.findall(path))


@lru_cache(maxsize=1)
def _first_pixel(tree: FileTree) -> float:
    """Return the number of the first pixel in files without decimals."""
    for file in tree.with_suffix(".xml"):
        with suppress(DataError):  # reported when its labels are read
            root = read_xml(file)
            values = [value for node in root.iter("object") for value in _shape(node, 0).corners]
            if not _has_decimals(root) and min(values, default=1) < 1:
                return 0.0
    return 1.0


def _add_masks(
    shapes: Sequence[Shape], file: Path, size: tuple[int, int], conversion: Conversion
) -> None:
    """Assign each mask of a file to the box with the highest IoU."""
    values = read_label_image(file, size).values
    for value in distinct_values(values[(values > 0) & (values != VOID)]):
        left, top, right, bottom = tight_bounds(values == value)
        free = [box for box in shapes if box.mask is None and box.corners and not box.polygon]
        boxes = np.array([bounding_box([shape.corners]) for shape in free]).reshape(-1, 4)
        mask_box = np.array([[left, top, right - left, bottom - top]], np.float64)
        overlaps = rle_codec.iou(boxes, mask_box, [False])
        if np.max(overlaps, initial=0) < _MIN_IOU:
            text = "They are not used. Compare them with the boxes of the XML file."
            example = f"value {value} of {file}"
            conversion.findings.add("masks that fit no box", text, example, "mask")
        else:
            free[int(np.argmax(overlaps))].mask = values == value
