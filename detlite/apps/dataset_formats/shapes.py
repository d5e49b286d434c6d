"""The shapes of annotation tools, and their conversion to labeled objects.

The module of each format yields the labels of images from its files. This module finds the images,
checks sizes and converts shapes to objects for all formats.
"""

import base64
import io
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.datasets.coco_masks import read_segmentation
from detlite.data.datasets.coco_values import CLIPPED, Reading, read_box
from detlite.data.images.pillow import open_pillow
from detlite.data.images.pixels import DEFAULT_OPTIONS
from detlite.data.images.reading import image_size
from detlite.data.images.sources import DECODE_ERRORS
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap, to_bitmap
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

_ELLIPSE_CORNERS = 36
_MAX_BYTES = 1 << 26  # of a PNG of a mask
_UPRIGHT = (
    "Labels are read for the upright images. If they count stored pixels, repeat `detlite init` "
    "with MODEL.CONVENTION_OVERRIDE exif_orientation=False at the end of its command."
)
_MAX_TOTAL = 10  # pixels of the masks of an image, in relation to the largest possible image


@dataclass
class Shape:
    """A part of an object.

    Attributes:
        category: name of the category.
        corners: flat list [x1, y1, x2, y2, ...] in pixels.
        polygon: the corners form a polygon; False: only their bounding box is known.
        holes: polygons that do not belong to the object.
        mask: bool [h, w], instead of a polygon; `origin` is its upper left pixel (x, y).
        canvas: (height, width) of the image that the mask belongs to, if the file states it.
        group: equal for the parts of an object; None if it is the only one.
        crowd, keypoints: see `LabeledObject`.
        problem: why the shape is not an object.
        where: position in the file, for messages, with punctuation.
    """

    category: str
    corners: Sequence[float] = ()
    polygon: bool = True
    holes: Sequence[Sequence[float]] = ()
    mask: np.ndarray | None = None
    origin: tuple[int, int] = (0, 0)
    canvas: tuple[int, int] | None = None
    group: Any = None
    crowd: bool = False
    keypoints: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    problem: str = ""
    where: str = ""

    @classmethod
    def of_kind(cls, kind: str, category: str, corners: Sequence[float] = ()) -> "Shape":
        """Return a polygon, or for any other kind a bad shape with the position of its corners."""
        problem = f"a shape of type {kind} is not an object; draw a box or polygon, or remove it"
        return cls(category, corners, problem="" if kind == "polygon" else problem)

    @classmethod
    def png(
        cls, category: str, text: Any, origin: tuple[int, int], limit: "MaskLimit",
        compressed: bool = False,
    ) -> "Shape":  # fmt: skip
        """Return the shape of a mask: a PNG in base64; `compressed`: zlib-compressed before."""
        try:
            data = base64.b64decode(text)
            data = zlib.decompressobj().decompress(data, _MAX_BYTES) if compressed else data
            with open_pillow(io.BytesIO(data), ["PNG"]) as image:
                limit.check(image.height, image.width)
                pixels = np.asarray(image)
        except (TypeError, zlib.error, *DECODE_ERRORS) as error:
            return cls(category, problem=f"its mask cannot be read ({error})")
        mask = pixels[:, :, -1] if pixels.ndim == 3 else pixels
        return cls(category, mask=mask > 0, origin=origin)

    @classmethod
    def of_bitmap(cls, category: str, mask: np.ndarray, limit: "MaskLimit") -> "Shape":
        """Return the shape of a mask bool [H, W] of a whole image; only its object is kept."""
        left, top, right, bottom = tight_bounds(mask)
        if right:  # an empty mask is refused with its position
            limit.check(bottom - top, right - left)
        part = mask[top:bottom, left:right].copy()
        return cls(category, mask=part, origin=(left, top), canvas=mask.shape)

    @classmethod
    def box(
        cls, category: str, box: Sequence[float], degrees: float = 0, pivot: Sequence[float] = ()
    ) -> "Shape":
        """Return the shape of a box (x, y, w, h), rotated clockwise around `pivot` or (x, y)."""
        x, y, w, h = box
        if not degrees:
            return cls(category, [x, y, x + w, y + h], polygon=False)
        corners = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
        return cls(category, _rotate(np.array(corners), pivot or (x, y), degrees))

    @classmethod
    def skeleton(cls, category: str, points: Mapping[str, tuple[float, float, int]]) -> "Shape":
        """Return the box around labeled keypoints."""
        corners = [value for *xy, visibility in points.values() if visibility for value in xy]
        return cls(category, corners, polygon=False, keypoints=points)

    @classmethod
    def ellipse(
        cls, category: str, center: Sequence[float], radii: Sequence[float], degrees: float = 0
    ) -> "Shape":
        """Return the polygon of an ellipse, rotated clockwise."""
        angles = np.arange(_ELLIPSE_CORNERS) * 2 * np.pi / _ELLIPSE_CORNERS
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii + center
        return cls(category, _rotate(points, center, degrees))


@dataclass
class ImageLabels:
    """The labels of an image: its name in the file, its (height, width) if known, and its shapes.

    `file` is the image file if the label file contained the image.
    """

    name: str
    shapes: list[Shape] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)
    split: str | None = None
    file: Path | None = None


LabelsOf = Callable[[Path, FileTree, Conversion], Iterator[ImageLabels]]


def read_shapes(
    labels_of: LabelsOf, suffix: str, tree: FileTree, conversion: Conversion, one_each: bool = False
) -> LabeledDataset:
    """Read all files with a suffix by the function of their format.

    `one_each`: a file of the format labels a single image, which may have the stem of the file.
    """
    images, used = [], set[Path]()
    for problem in tree.lists[1]:
        conversion.add_bad(problem, WITH_IMAGE)
    for file in tree.with_suffix(suffix):
        found: list[ImageLabels] = []
        with conversion.collect(), as_incomplete(f"{file}: "):
            found = list(labels_of(file, tree, conversion))
        for labels in found:
            with conversion.collect(), as_incomplete(f"{file}: "):
                path = labels.file or tree.image(labels.name, file, one_each)
                used.add(path)
                if one_each and tree.has_other_image(file, path):
                    text = "The image that is named in the file is used."
                    what = "label files with the name of another image"
                    conversion.findings.add(what, text, f"{file} ({path})", "file")
                size = check_size(path, labels.size, file, conversion)
                where = f"{file}" if one_each else f"{file}: {labels.name}"
                objects = to_objects(labels.shapes, size, where, conversion)
                split = labels.split or tree.split_of(path, file)
                images.append(LabeledImage(path, size, objects, split))
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
    height, width = (round(float(side or 0)) for side in expected)
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


def read_each(
    read: Callable[[Any], ImageLabels], rows: Iterable[Any], file: Path, conversion: Conversion
) -> Iterator[ImageLabels]:
    """Yield `read(row)` for the image entries of a file."""
    for number, row in enumerate(rows, start=1):
        with conversion.collect(), as_incomplete(f"{file}: image {number}: "):
            yield read(row)


class MaskLimit:
    """Bounds the sizes that a file states for the masks of one image, before they are decoded."""

    def __init__(self) -> None:
        self._left = _MAX_TOTAL * DEFAULT_OPTIONS.max_pixels

    def check(self, height: int, width: int) -> None:
        """Raise a ValueError if a mask is too large, alone or with those that passed before."""
        check_mask_size(height, width)
        if height * width > self._left:
            raise ValueError(
                f"the masks of its image have together more than {_MAX_TOTAL} times the pixels of "
                "the largest possible image: crop them to their objects, or draw polygons"
            )
        self._left -= height * width


@contextmanager
def as_incomplete(where: str = "") -> Iterator[None]:
    """Convert errors about missing values and values of other types to DataError."""
    try:
        yield
    except (DataError, OSError, MemoryError):
        raise
    except Exception as error:  # pycocotools raises this class for corners that are not numbers
        raise DataError(f"{where}is not complete ({error!r}): export it again") from error


def check_mask_size(height: int, width: int) -> None:
    """Raise a ValueError if a file states a larger size of a mask than an image may have."""
    if not 0 < height * width <= DEFAULT_OPTIONS.max_pixels:
        raise ValueError(f"its mask has {width}x{height} pixels, which no image can have")


def read_shape(read: Callable[..., Shape], category: str, *values: Any) -> Shape:
    """Return `read(category, *values)`, or a bad shape if values are missing or not numbers."""
    try:
        with as_incomplete():
            shape = read(category, *values)
            if np.asarray(shape.corners).dtype.kind not in "iuf":
                raise TypeError("coordinates must be numbers")
            return shape
    except DataError as error:
        return Shape(category, problem=str(error))


def to_objects(
    shapes: Sequence[Shape], size: tuple[int, int], where: str, conversion: Conversion
) -> list[LabeledObject]:
    """Return the objects of an image: shapes with the same category and group form one object.

    Bad shapes become ignored regions.
    """
    objects: dict[Any, LabeledObject] = {}
    for number, shape in enumerate(shapes, start=1):
        shape.category = str(shape.category) if isinstance(shape.category, (str, int)) else ""
        name = f" ({shape.category})" if shape.category else ""
        position = f"{where}{shape.where or f': object {number}{name}'}"
        key = number if shape.group is None else (shape.category, shape.group)
        visible = _visible_box(shape, size)
        try:
            part = _to_object(shape, size, position, visible)
            conversion.objects += 1
            if shape.corners and read_box([*bounding_box([shape.corners])], *size).note == CLIPPED:
                conversion.exceeding += 1
                conversion.findings.add(*CLIPPED, position, "object")
            if key in objects:
                text = "Shapes with the same label and group form one object."
                conversion.findings.add("parts of objects", text, position, "shape")
                part = _join(objects[key], part, position)
            objects[key] = part
        except DataError as error:
            conversion.add_bad(str(error), AS_REGION if visible else AS_BACKGROUND)
            if visible:
                objects[-number] = LabeledObject(shape.category, visible, ignored=True)
    return list(objects.values())


def _join(first: LabeledObject, part: LabeledObject, where: str) -> LabeledObject:
    """Join two parts to an object. Raises DataError unless both are polygons."""
    if not (isinstance(first.segmentation, list) and isinstance(part.segmentation, list)):
        raise DataError(f"{where}: is in a group with another shape, but only polygons can be")
    corners = [(x, y, x + w, y + h) for x, y, w, h in (first.box, part.box)]
    polygons = [*first.segmentation, *part.segmentation]
    return replace(first, box=bounding_box(corners), segmentation=polygons)


def _visible_box(shape: Shape, size: tuple[int, int]) -> Box | None:
    """Return the box of the visible part of a shape; None if nothing is inside the image."""
    corners = shape.corners
    if shape.mask is not None and shape.mask.any():
        corners = (np.reshape(tight_bounds(shape.mask), (2, 2)) + shape.origin).ravel().tolist()
    if len(corners) < 4 or not all(map(math.isfinite, corners)):
        return None
    x, y, w, h = bounding_box([corners])
    x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + w, size[1]), min(y + h, size[0])
    return (x1, y1, x2 - x1, y2 - y1) if x1 < x2 and y1 < y2 else None


def _to_object(
    shape: Shape, size: tuple[int, int], where: str, visible: Box | None
) -> LabeledObject:
    """Return the object of a shape, whose box is `visible`. Raises DataError."""
    if not shape.category and not shape.crowd:
        shape.problem = shape.problem or "has no label"
    if shape.problem:
        raise DataError(f"{where}: {shape.problem}")
    height, width = size
    if shape.mask is not None:
        (x, y), (h, w) = shape.origin, shape.mask.shape
        if shape.canvas not in (None, size):
            h, w = shape.canvas
            raise DataError(f"{where}: its mask is {w}x{h}, but the image {width}x{height}")
        if min(x, y) < 0 or x + w > width or y + h > height:
            raise DataError(f"{where}: its mask extends beyond the {width}x{height} image")
        bitmap = np.zeros(size, bool)
        bitmap[y : y + h, x : x + w] = shape.mask
        obj = object_from_bitmap(shape.category, bitmap, where)
        if shape.corners:
            obj = replace(obj, box=bounding_box([shape.corners]))
        return replace(obj, crowd=shape.crowd, keypoints=shape.keypoints)
    outline = read_segmentation([[*shape.corners]], *size) if shape.polygon else Reading()
    if outline.problem:
        raise DataError(f"{where}: {outline.problem}")
    if visible is None:
        raise DataError(f"{where}: the object has no area inside the {width}x{height} image")
    obj = LabeledObject(shape.category, visible, outline.value)
    if shape.holes:
        outer, inner = (to_bitmap(rings, *size) for rings in (outline.value, [*shape.holes]))
        obj = object_from_bitmap(shape.category, outer > inner, where)
    return replace(obj, crowd=shape.crowd, keypoints=shape.keypoints)


def object_from_bitmap(category: str, bitmap: np.ndarray, where: str) -> LabeledObject:
    """Return the object with the mask bool [H, W], which must not be empty."""
    left, top, right, bottom = map(float, tight_bounds(bitmap))
    if not right:
        raise DataError(f"{where}: the mask is empty: no pixel of the object is set; remove it")
    box = left, top, right - left, bottom - top
    return LabeledObject(category, box, encode_bitmap(bitmap))


def _rotate(points: np.ndarray, pivot: Sequence[float], degrees: float) -> list[float]:
    """Rotate points [N, 2] clockwise in the image, and return them as a flat list."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    rotated = (points - pivot) @ np.array([[cos, sin], [-sin, cos]]) + pivot
    return [float(value) for value in rotated.ravel()]


def flat(points: Sequence[Sequence[float]]) -> list[float]:
    """Return points [(x, y), ...] as a flat list."""
    return [float(value) for point in points for value in point[:2]]


def bounding_box(polygons: Sequence[Sequence[float]]) -> Box:
    """Return the box (x, y, width, height) of polygons [x1, y1, x2, y2, ...]."""
    xs = [value for polygon in polygons for value in polygon[0::2]]
    ys = [value for polygon in polygons for value in polygon[1::2]]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)
