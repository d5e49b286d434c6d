"""Read LabelMe's json files, one for each image (https://github.com/wkentaro/labelme).

Polygons, rectangles, circles and masks are objects. Shapes with the same label and group form one
object.
"""

import base64
import binascii
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detlite.data.errors import DataError, short_repr
from detlite.data.loading.image_io import image_size
from detlite.data.loading.image_readers import image_suffixes

from .labeled_dataset import (
    LabeledDataset,
    LabeledImage,
    LabeledObject,
    bounding_box,
    check_size,
    object_from_bitmap,
    object_from_corners,
)

_CIRCLE_CORNERS = 36
_HEAD = 1 << 16  # bytes at the start and the end of a file that are searched for LabelMe's keys
_MIN_POINTS = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2}


def is_labelme(folder: Path) -> bool:
    """Return True if the first json file of a folder is from LabelMe."""
    file = next(iter(sorted(folder.glob("*.json"))), None)
    if file is None:
        return False
    data = file.read_bytes()
    # The keys may be separated by imageData, which holds the whole image.
    text = (data[:_HEAD] + data[-_HEAD:]).decode(json.detect_encoding(data), "replace")
    return re.search(r'"(shapes|imagePath)"\s*:', text) is not None


def read_labelme(folder: Path) -> dict[str, LabeledDataset]:
    """Read all json files of a folder as "train". Images without a json file are skipped.

    Raises:
        DataError: a file or shape is invalid.
    """
    return {"train": LabeledDataset(folder, list(map(_read_file, sorted(folder.glob("*.json")))))}


def _read_file(file: Path) -> LabeledImage:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise DataError(f"{file}: is not a LabelMe file: it has no list 'shapes'")
    image = _find_image(content, file)
    height, width = image_size(image)
    expected = content.get("imageHeight") or height, content.get("imageWidth") or width
    size = check_size(image, expected, file)
    objects: list[LabeledObject] = []
    groups: dict[tuple[str, Any], int] = {}
    for index, shape in enumerate(content["shapes"]):
        where = f"{file}: shapes[{index}]"
        obj = _read_shape(shape, size, where)
        key = obj.category, shape.get("group_id")
        if key[1] is None or key not in groups:
            groups[key] = len(objects)
            objects.append(obj)
        else:
            objects[groups[key]] = _merge(objects[groups[key]], obj, where)
    return LabeledImage(image, size, objects)


def _find_image(content: dict[str, Any], file: Path) -> Path:
    """Return the image that the file refers to, or else the image of the same name."""
    path = str(content.get("imagePath") or "").replace("\\", "/")
    candidates = [file.parent / path, file.parent / path.rpartition("/")[2]]
    candidates += [file.with_suffix(suffix) for suffix in sorted(image_suffixes())]
    for candidate in candidates:
        if candidate.is_file() and candidate != file:
            return Path(os.path.normpath(candidate))
    embedded = "; the image inside it (imageData) is not read" if content.get("imageData") else ""
    raise DataError(f"{file}: its image {path!r} does not exist{embedded}")


def _read_shape(shape: Any, size: tuple[int, int], where: str) -> LabeledObject:
    if not isinstance(shape, dict) or not isinstance(shape.get("label"), str):
        raise DataError(f"{where}: has no label")
    kind, label, points = shape.get("shape_type") or "polygon", shape["label"], shape.get("points")
    where = f"{where} ({label})"
    if not isinstance(points, list) or not all(map(_is_point, points)):
        raise DataError(f"{where}: points is {short_repr(points)}, not a list of [x, y]")
    if kind not in _MIN_POINTS:
        raise DataError(
            f"{where}: a shape of type {kind} is not an object; remove it, or use one of "
            f"{', '.join(_MIN_POINTS)}"
        )
    if len(points) < _MIN_POINTS[kind]:
        raise DataError(f"{where}: a {kind} of {len(points)} points needs {_MIN_POINTS[kind]}")
    if kind == "mask":
        return object_from_bitmap(label, _read_mask(shape, size, where), where)
    if kind == "circle":
        (x, y), radius = points[0], math.dist(points[0], points[1])
        angles = [2 * math.pi * corner / _CIRCLE_CORNERS for corner in range(_CIRCLE_CORNERS)]
        points = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
    corners = [float(value) for point in points for value in point]
    return object_from_corners(label, corners, size, where, polygon=kind != "rectangle")


def _read_mask(shape: dict[str, Any], size: tuple[int, int], where: str) -> np.ndarray:
    """Return the bitmap bool [H, W] of a mask, stored as a base64 PNG with its top left corner."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(shape["mask"]))) as image:
            pixels = np.asarray(image) > 0
    except (KeyError, TypeError, binascii.Error, OSError) as error:
        raise DataError(f"{where}: its mask cannot be read ({error})") from error
    x, y = (round(value) for value in shape["points"][0])
    bitmap = np.zeros(size, bool)
    window = bitmap[y : y + pixels.shape[0], x : x + pixels.shape[1]] if min(x, y) >= 0 else None
    if pixels.ndim != 2 or window is None or window.shape != pixels.shape:
        raise DataError(f"{where}: its mask extends beyond the {size[1]}x{size[0]} image")
    window[:] = pixels
    return bitmap


def _merge(first: LabeledObject, second: LabeledObject, where: str) -> LabeledObject:
    """Return the object that consists of the polygons of two."""
    if not (isinstance(first.segmentation, list) and isinstance(second.segmentation, list)):
        raise DataError(f"{where}: is in a group with another shape, but only polygons can be")
    polygons = [*first.segmentation, *second.segmentation]
    return LabeledObject(first.category, bounding_box(polygons), polygons)


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(value) in (int, float) and math.isfinite(value) for value in point)
    )
