"""Read LabelMe's json files, one for each image (https://github.com/wkentaro/labelme).

Polygons, rectangles, circles and masks are objects. Shapes with the same label and group form one
object, and points in the group of an object are its keypoints.
"""

import base64
import binascii
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detlite.atomic_write import atomic_open
from detlite.data.errors import DataError, short_repr
from detlite.data.loading.image_readers import DECODE_ERRORS, SAFE_FORMATS

from .file_tree import OUTPUT_FOLDER, FileTree, read_json
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape, ellipse_shape, flat

_MIN_POINTS = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2, "point": 1}
_VISIBLE = 2
# Labels of regions where objects are not labeled, and where there are none.
_UNLABELED = ("__ignore__", "_background_")


def labelme_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the image of a file; nothing if another program wrote it."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        return
    size = content.get("imageHeight") or 0, content.get("imageWidth") or 0
    labels = ImageLabels(str(content.get("imagePath") or ""), size=size)
    points: list[Shape] = []
    for index, row in enumerate(content["shapes"]):
        shape = _shape(row, f": shapes[{index}]")
        if shape.category in _UNLABELED:
            text = "They are ignored: neither trained on nor evaluated."
            what = f"regions labeled {shape.category}"
            conversion.findings.add(what, text, str(file), "region")
            if shape.category == "_background_":
                continue
            shape.category, shape.crowd = "", True
        is_point = isinstance(row, dict) and row.get("shape_type") == "point" and not shape.problem
        (points if is_point else labels.shapes).append(shape)
    for point in points:
        labels.shapes += _add_keypoint(labels.shapes, point)
    if content.get("imageData"):
        try:
            tree.image(labels.name, file, one_each=True)
        except DataError:
            labels.file = _write_image(content["imageData"], file, tree, conversion)
    yield labels


def _shape(row: Any, where: str) -> Shape:
    if not isinstance(row, dict) or not isinstance(row.get("label"), str):
        return Shape("", problem="has no label", where=where)
    kind, points = row.get("shape_type") or "polygon", row.get("points")
    shape = Shape(row["label"], polygon=kind != "rectangle", where=f"{where} ({row['label']})")
    shape.group = row.get("group_id")
    if not isinstance(points, list) or not all(map(_is_point, points)):
        shape.problem = f"points is {short_repr(points)}, not a list of [x, y]"
        return shape
    shape.corners = flat(points)
    if kind not in _MIN_POINTS:
        shape.problem = (
            f"a shape of type {kind} is not an object; remove it, or use one of "
            f"{', '.join(_MIN_POINTS)}"
        )
    elif len(points) < _MIN_POINTS[kind]:
        shape.problem = f"a {kind} of {len(points)} points needs {_MIN_POINTS[kind]}"
    elif kind == "mask":
        shape.corners, shape.origin = (), (round(points[0][0]), round(points[0][1]))
        try:
            shape.mask = _decode(row["mask"]) > 0
        except (KeyError, TypeError, binascii.Error, *DECODE_ERRORS) as error:
            shape.problem = f"its mask cannot be read ({error})"
    elif kind == "circle":
        radius = math.dist(points[0], points[1])
        shape.corners = ellipse_shape("", points[0], (radius, radius)).corners
    return shape


def _decode(text: str) -> np.ndarray:
    """Decode the PNG of a mask."""
    data = io.BytesIO(base64.b64decode(text))
    with Image.open(data, formats=SAFE_FORMATS) as image:
        return np.asarray(image.convert("L"))


def _add_keypoint(shapes: list[Shape], point: Shape) -> list[Shape]:
    """Add a point to the object of its group; return it as a bad shape if there is none.

    Its label may start with the category of the object, as `to_labelme` writes it.
    """
    owners = [one for one in shapes if one.group is not None and one.group == point.group]
    owners = [one for one in owners if point.category.startswith(f"{one.category} ")] or owners
    if len({one.category for one in owners}) != 1:
        point.problem = (
            "a point is a keypoint if it has the group_id of one object. Remove it, or give both "
            "the same group_id"
        )
        return [point]
    name = point.category.removeprefix(f"{owners[0].category} ")
    x, y = point.corners
    owners[0].keypoints = {**owners[0].keypoints, name: (x, y, _VISIBLE)}
    return []


def _write_image(text: str, file: Path, tree: FileTree, conversion: Conversion) -> Path:
    """Write the image that is stored in a json file. Raises DataError."""
    try:
        data = base64.b64decode(text)
        with Image.open(io.BytesIO(data), formats=SAFE_FORMATS) as image:
            suffix = f".{image.format}".lower()
    except (binascii.Error, TypeError, *DECODE_ERRORS) as error:
        raise DataError(f"{file}: the image in it (imageData) cannot be read ({error})") from error
    folder = (conversion.output or tree.root / OUTPUT_FOLDER) / "images"
    path = (folder / file.relative_to(tree.root)).with_suffix(suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path, "wb", unique=True) as stream:
            stream.write(data)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error
    effect = f"They are written to {folder}."
    conversion.findings.add("images that are stored in json files", effect, str(file), "image")
    return path


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(value) in (int, float) and math.isfinite(value) for value in point)
    )
