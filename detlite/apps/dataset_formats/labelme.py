"""LabelMe's json files, one for each picture (https://github.com/wkentaro/labelme).

Polygons, rectangles, circles and masks are objects; shapes of one label and group are one object.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detlite.data.errors import DataError, short_repr
from detlite.data.loading.image_io import image_size
from detlite.structures.masks.formats import encode_bitmap

from .labeled_dataset import (
    LabelledObject,
    LabelledPicture,
    LabelledSet,
    box_around,
    picture_suffixes,
)

_CORNERS = 36  # of a circle
_READ = 1 << 16  # characters at the beginning and the end by which a file is recognised


def is_labelme(folder: Path) -> bool:
    """Whether the first json file of a folder is one of LabelMe's."""
    file = next(iter(sorted(folder.glob("*.json"))), None)
    if file is None:
        return False
    data = file.read_bytes()
    # imageData, the picture itself, may stand between the two.
    text = (data[:_READ] + data[-_READ:]).decode(json.detect_encoding(data), "replace")
    return re.search(r'"(shapes|imagePath)"\s*:', text) is not None


def read_labelme(folder: Path) -> dict[str, LabelledSet]:
    """All json files of a folder, as "train". A picture without one is left out.

    Raises:
        DataError: naming the file, and which of its shapes.
    """
    pictures = [_read_file(file) for file in sorted(folder.glob("*.json"))]
    return {"train": LabelledSet(folder, pictures)}


def _read_file(file: Path) -> LabelledPicture:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise DataError(f"{file}: is not LabelMe's: has no list 'shapes'")
    picture = _picture(content, file)
    size = image_size(picture)
    stated = content.get("imageHeight") or size[0], content.get("imageWidth") or size[1]
    if stated != size:
        raise DataError(
            f"{file}: states {stated[1]}x{stated[0]} (width x height), but {picture} is "
            f"{size[1]}x{size[0]}"
        )
    objects: list[LabelledObject] = []
    groups: dict[tuple[str, Any], int] = {}
    for place, shape in enumerate(content["shapes"]):
        where = f"{file}: shapes[{place}]"
        one = _object(shape, size, where)
        key = one.category, shape.get("group_id")
        if key[1] is None or key not in groups:
            groups[key] = len(objects)
            objects.append(one)
        else:
            objects[groups[key]] = _joined(objects[groups[key]], one, where)
    return LabelledPicture(picture, size, objects)


def _picture(content: dict[str, Any], file: Path) -> Path:
    """The picture that a file names, or that has its name."""
    path = str(content.get("imagePath") or "").replace("\\", "/")
    places = [file.parent / path, file.parent / path.rpartition("/")[2]]
    places += [file.with_suffix(suffix) for suffix in sorted(picture_suffixes())]
    found = next((place for place in places if place.is_file() and place != file), None)
    if found is None:
        inside = "; it holds the picture as imageData, which is not read" * bool(
            content.get("imageData")
        )
        raise DataError(f"{file}: names the picture {path!r}, which is not there{inside}")
    return Path(*_without_dots(found.parts))


def _without_dots(parts: Sequence[str]) -> list[str]:
    """A path's parts without `..`, where labels lie in a folder beside the pictures."""
    kept: list[str] = []
    for part in parts:
        if part == ".." and kept and kept[-1] != "..":
            kept.pop()
        else:
            kept.append(part)
    return kept


def _object(shape: Any, size: tuple[int, int], where: str) -> LabelledObject:
    if not isinstance(shape, dict) or not isinstance(shape.get("label"), str):
        raise DataError(f"{where}: has no label")
    kind, label = shape.get("shape_type") or "polygon", shape["label"]
    where = f"{where} ({label})"
    points = shape.get("points")
    if not isinstance(points, list) or not all(_is_point(point) for point in points):
        raise DataError(f"{where}: points is {short_repr(points)}, not a list of [x, y]")
    needed = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2}
    if kind not in needed:
        raise DataError(
            f"{where}: is a {kind}, which is no object: {', '.join(needed)} are read; remove it"
        )
    if len(points) < needed[kind]:
        raise DataError(f"{where}: a {kind} of {len(points)} points: {needed[kind]} are needed")
    segmentation: Any = None
    if kind == "mask":
        segmentation, corners = _mask(shape, size, where)
    elif kind == "circle":
        (x, y), edge = points[0], points[1]
        radius = math.dist(points[0], edge)
        turns = [2 * math.pi * corner / _CORNERS for corner in range(_CORNERS)]
        corners = [
            value
            for turn in turns
            for value in (x + radius * math.cos(turn), y + radius * math.sin(turn))
        ]
    else:
        corners = [float(value) for point in points for value in point]
    height, width = size
    corners = [
        min(max(value, 0.0), float(height if place % 2 else width))
        for place, value in enumerate(corners)
    ]
    box = box_around([corners])
    if min(box[2:]) <= 0:
        raise DataError(f"{where}: has no area inside the {width}x{height} picture")
    if kind in ("polygon", "circle"):
        segmentation = [corners]
    return LabelledObject(label, box, segmentation)


def _mask(shape: dict[str, Any], size: tuple[int, int], where: str) -> tuple[Any, list[float]]:
    """The RLE of a shape whose pixels are a PNG in base64 at its points, and its box's corners."""
    try:
        data = base64.b64decode(shape["mask"])
        with Image.open(io.BytesIO(data)) as picture:
            pixels = np.asarray(picture) > 0
    except (KeyError, TypeError, binascii.Error, OSError) as error:
        raise DataError(f"{where}: its mask cannot be read ({error})") from error
    x, y = (round(value) for value in shape["points"][0])
    bitmap = np.zeros(size, bool)
    inside = bitmap[y : y + pixels.shape[0], x : x + pixels.shape[1]] if min(x, y) >= 0 else None
    if pixels.ndim != 2 or inside is None or inside.shape != pixels.shape:
        raise DataError(f"{where}: its mask reaches out of the {size[1]}x{size[0]} picture")
    inside[:] = pixels
    rows, columns = np.nonzero(bitmap)
    if not len(rows):
        raise DataError(f"{where}: its mask is empty")
    corners = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return encode_bitmap(bitmap), [float(value) for value in corners]


def _joined(one: LabelledObject, other: LabelledObject, where: str) -> LabelledObject:
    """Two parts of an object."""
    if not (isinstance(one.segmentation, list) and isinstance(other.segmentation, list)):
        raise DataError(
            f"{where}: is in a group with another shape, and only polygons can be parts"
        )
    polygons = [*one.segmentation, *other.segmentation]
    return LabelledObject(one.category, box_around(polygons), polygons)


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(value) in (int, float) and math.isfinite(value) for value in point)
    )
