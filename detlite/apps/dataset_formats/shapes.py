"""The shapes of label files, and their conversion to labeled objects.

The module of each format yields the labels of images from its files. This module finds the images,
checks sizes and converts shapes to objects for all formats.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.annotations.ids import parse_number
from detlite.data.annotations.judge import CLIPPED
from detlite.data.annotations.single import Reading, read_box, read_segmentation
from detlite.data.images.reading import image_size
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.rle import tight_bounds

from .file_tree import UNLABELED, FileTree
from .labeled_dataset import (
    AS_BACKGROUND,
    AS_REGION,
    WITH_IMAGE,
    Box,
    Conversion,
    LabeledDataset,
    LabeledImage,
    LabeledObject,
)

_UPRIGHT = (
    "Labels are read for the upright images. If they count stored pixels, repeat `detlite init` "
    "with MODEL.CONVENTION_OVERRIDE exif_orientation=False at the end of its command."
)


@dataclass
class Shape:
    """A part of an object.

    Attributes:
        category: name of the category.
        corners: flat list [x1, y1, x2, y2, ...] in pixels.
        polygon: the corners form a polygon; False: only their bounding box is known.
        mask: bool [h, w], instead of a polygon; `origin` is its upper left pixel (x, y).
        group: equal for the parts of an object; None if it is the only one.
        crowd, keypoints: see `LabeledObject`.
        problem: why the shape is not an object.
        where: position in the file, for messages, with punctuation.
    """

    category: str
    corners: Sequence[float] = ()
    polygon: bool = True
    mask: np.ndarray | None = None
    origin: tuple[int, int] = (0, 0)
    group: Any = None
    crowd: bool = False
    keypoints: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    problem: str = ""
    where: str = ""


@dataclass
class ImageLabels:
    """The labels of an image: its name in the file, its shapes, and its (height, width) if known.

    `split` is the one of a label file of many images.
    """

    name: str
    shapes: list[Shape] = field(default_factory=list)
    size: Sequence[Any] = (0, 0)
    split: str | None = None


LabelsOf = Callable[[Path, FileTree, Conversion], Iterator[ImageLabels]]


def read_shapes(
    labels_of: LabelsOf, suffix: str, tree: FileTree, conversion: Conversion, one_each: bool = True
) -> LabeledDataset:
    """Read all files with a suffix by the function of their format.

    With `one_each`, a file labels one image, and may have its name.
    """
    images, used = [], set[Path]()
    for problem in tree.lists[1]:
        conversion.add_bad(problem, WITH_IMAGE)
    conversion.findings.assign(None)
    for file in tree.with_suffix(suffix):
        with conversion.collect():
            for labels in labels_of(file, tree, conversion):
                path = tree.image(labels.name, file, one_each)
                used.add(path)
                if one_each and tree.has_other_image(file, path):
                    text = "The image that is named in the file is used."
                    what = "label files with the name of another image"
                    conversion.findings.add(what, text, f"{file} ({path})", "file")
                size = check_size(path, labels.size, file, conversion)
                objects = to_objects(labels.shapes, size, f"{file}", conversion)
                split = labels.split or tree.split_of(path, file)
                images.append(LabeledImage(path, size, objects, split))
                conversion.findings.assign(path)
    return LabeledDataset(tree.data, [*images, *unused_images(tree, used, UNLABELED)])


def unused_images(tree: FileTree, used: Collection[Path], split: str) -> list[LabeledImage]:
    """Return the other images in the folders of the used ones, in a split that is not used."""
    folders = {path.parent for path in used}
    rest = [image for image in tree.images if image.parent in folders and image not in used]
    return [LabeledImage(image, (0, 0), (), split) for image in rest]


def check_size(
    image: Path, expected: Sequence[Any], file: Path | None, conversion: Conversion
) -> tuple[int, int]:
    """Return the (height, width) of an image, and check the one that a label file states.

    `expected` has zeros or None if it is unknown. It may be the size before or after applying the
    EXIF orientation. Raises DataError if the sizes differ, or if the image cannot be read.
    """
    height, width = (round(parse_number(side) or 0) for side in expected)
    upright, stated = conversion.upright, (height, width)
    size, other = image_size(image, upright), image_size(image, not upright)
    if upright and size != other and not all(stated):
        what = "images with an EXIF orientation, whose labels state no size"
        conversion.findings.add(what, _UPRIGHT, str(image), "image")
    if all(stated) and stated not in (size, other):
        raise DataError(
            f"{file}: its size is {stated[1]}x{stated[0]} (width x height), but {image} is "
            f"{size[1]}x{size[0]}"
        )
    return stated if all(stated) else size


def to_objects(
    shapes: Iterable[Shape], size: tuple[int, int], where: str, conversion: Conversion
) -> list[LabeledObject]:
    """Return the objects of an image: shapes with the same category and group form one object.

    Bad shapes become ignored regions.
    """
    objects: dict[Any, LabeledObject] = {}
    for number, shape in enumerate(shapes, start=1):
        name = f" ({shape.category})" if shape.category else ""
        position = f"{where}{shape.where or f': object {number}{name}'}"
        key = number if shape.group is None else (shape.category, shape.group)
        extent = _read_extent(shape, size)
        try:
            part = _to_object(shape, size, position, extent)
            conversion.objects += 1
            if shape.corners and extent.note == CLIPPED:
                conversion.findings.add(*CLIPPED, position, "object")
            if key in objects:
                text = "Shapes with the same label and group form one object."
                conversion.findings.add("parts of objects", text, position, "shape")
                part = _join(objects[key], part, position)
            objects[key] = part
        except DataError as error:
            conversion.add_bad(str(error), AS_REGION if extent.value else AS_BACKGROUND)
            if extent.value:
                objects[-number] = LabeledObject(shape.category, extent.value, ignored=True)
    return list(objects.values())


def _join(first: LabeledObject, part: LabeledObject, where: str) -> LabeledObject:
    """Join two parts to an object. Raises DataError unless both are polygons."""
    if not (isinstance(first.segmentation, list) and isinstance(part.segmentation, list)):
        raise DataError(f"{where}: is in a group with another shape, but only polygons can be")
    corners = [(x, y, x + w, y + h) for x, y, w, h in (first.box, part.box)]
    polygons = [*first.segmentation, *part.segmentation]
    return replace(first, box=bounding_box(corners), segmentation=polygons)


def _read_extent(shape: Shape, size: tuple[int, int]) -> Reading:
    """Read the box around a shape by the rules of annotation files."""
    corners = shape.corners
    if not corners and shape.mask is not None and shape.mask.any():
        corners = (np.reshape(tight_bounds(shape.mask), (2, 2)) + shape.origin).ravel().tolist()
    if len(corners) < 4 or not all(map(math.isfinite, corners)):
        return Reading(problem="has no box")
    extent = read_box([*bounding_box([corners])], *size)
    return extent._replace(value=extent.value and tuple(extent.value))


def _to_object(shape: Shape, size: tuple[int, int], where: str, extent: Reading) -> LabeledObject:
    """Return the object of a shape in its `extent`. Raises DataError."""
    if not shape.category and not shape.crowd:
        shape.problem = shape.problem or "has no label"
    if shape.problem:
        raise DataError(f"{where}: {shape.problem}")
    height, width = size
    segmentation, box = None, extent.value
    if shape.mask is not None:
        (x, y), (h, w) = shape.origin, shape.mask.shape
        if min(x, y) < 0 or x + w > width or y + h > height:
            raise DataError(f"{where}: its mask extends beyond the {width}x{height} image")
        if not shape.mask.any():
            raise DataError(f"{where}: the mask is empty: no pixel of the object is set; remove it")
        bitmap = np.pad(shape.mask, ((y, height - y - h), (x, width - x - w)))
        segmentation = encode_bitmap(bitmap)
    elif shape.polygon:
        outline = read_segmentation([[*shape.corners]], *size)
        if outline.problem:
            raise DataError(f"{where}: {outline.problem}")
        segmentation = outline.value
    if extent.problem:
        raise DataError(f"{where}: {extent.problem}")
    return LabeledObject(shape.category, box, segmentation, shape.crowd, keypoints=shape.keypoints)


def rotated_box(box: Sequence[float], degrees: float) -> list[float]:
    """Return the corners of a box (x, y, w, h), rotated clockwise around its center."""
    x, y, w, h = box
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    offsets = [(-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2)]
    corners = [(dx * cos - dy * sin, dx * sin + dy * cos) for dx, dy in offsets]
    return [value for dx, dy in corners for value in (x + w / 2 + dx, y + h / 2 + dy)]


def bounding_box(polygons: Sequence[Sequence[float]]) -> Box:
    """Return the box (x, y, width, height) of polygons [x1, y1, x2, y2, ...]."""
    xs = [value for polygon in polygons for value in polygon[0::2]]
    ys = [value for polygon in polygons for value in polygon[1::2]]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)
