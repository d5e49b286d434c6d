"""Read LabelMe's json files, one for each image.

Polygons, rectangles, circles and masks are read. Shapes with the same label and group form one
object, and points in the group of an object are its keypoints.
"""

import base64
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.images.pillow import open_pillow
from detlite.data.images.pixels import DEFAULT_OPTIONS
from detlite.data.images.sources import DECODE_ERRORS
from detlite.files.errors import short_repr
from detlite.files.json_files import read_json

from .file_tree import FileTree
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape

_MIN_POINTS = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2, "point": 1, "rotation": 3,
               "oriented_rectangle": 4}  # fmt: skip
_CIRCLE = np.linspace(0, 2 * np.pi, 36, endpoint=False)  # angles of the corners
_MAX_MASKS = 10 * DEFAULT_OPTIONS.max_pixels  # pixels of all masks of an image
_VISIBLE = 2
# Labels of regions with unlabeled objects, and of regions without objects.
NO_OBJECTS = ("__ignore__", "_background_")


def labelme_labels(file: Path, _: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the labels of a file's image; nothing if another program wrote the file."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        return
    size = content.get("imageHeight"), content.get("imageWidth")
    labels = ImageLabels(str(content.get("imagePath") or ""), size=size)
    points: list[Shape] = []
    mask_pixels = 0
    for index, row in enumerate(content["shapes"]):
        row = row if isinstance(row, dict) else {}
        label = row.get("label")
        shape = Shape(
            str(label) if isinstance(label, (str, int)) else "", group=row.get("group_id")
        )
        kind = row.get("shape_type") or "polygon"
        try:
            _read_outline(shape, kind, row, _MAX_MASKS - mask_pixels)
        except ValueError as error:
            shape.problem = str(error)
        mask_pixels += 0 if shape.mask is None else shape.mask.size
        shape.where = f": shapes[{index}]" + f" ({shape.category})" * bool(shape.category)
        if shape.category in NO_OBJECTS:
            text = "They are ignored: neither trained on nor evaluated."
            what = f"regions labeled {shape.category}"
            conversion.findings.add(what, text, str(file), "region")
            if shape.category == "_background_":
                continue
            shape.category, shape.crowd = "", True
        is_point = kind == "point" and not shape.problem
        (points if is_point else labels.shapes).append(shape)
    for point in points:
        _add_keypoint(labels.shapes, point)
    yield labels


def _read_outline(shape: Shape, kind: Any, row: dict[str, Any], max_pixels: int) -> None:
    """Set the corners or the mask of a shape. Raises ValueError if it is not an object."""
    points = row.get("points")
    if not isinstance(points, list) or not all(map(_is_point, points)):
        raise ValueError(f"points is {short_repr(points)}, not a list of [x, y]")
    shape.corners = [float(value) for point in points for value in point]
    if kind not in _MIN_POINTS:
        raise ValueError(
            f"a shape of type {kind} is not an object; draw a box or polygon, or remove it"
        )
    if len(points) < _MIN_POINTS[kind]:
        raise ValueError(f"a {kind} of {len(points)} points needs {_MIN_POINTS[kind]}")
    shape.polygon = kind != "rectangle"
    if kind == "mask":
        shape.mask = _read_mask(row.get("mask"), max_pixels)
        shape.corners, shape.origin = (), (round(points[0][0]), round(points[0][1]))
    elif kind == "circle":
        circle = np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], axis=1)
        shape.corners = (circle * math.dist(*points[:2]) + points[0]).ravel().tolist()


def _is_point(point: Any) -> bool:
    numbers = isinstance(point, list) and all(type(value) in (int, float) for value in point)
    return numbers and len(point) == 2 and all(map(math.isfinite, point))


def _read_mask(text: Any, max_pixels: int) -> np.ndarray:
    """Read a PNG in base64. Raises ValueError if it cannot be read or has too many pixels."""
    try:
        with open_pillow(io.BytesIO(base64.b64decode(text)), ["PNG"]) as image:
            if image.width * image.height > max_pixels:
                raise ValueError("the masks of its image have too many pixels: draw polygons")
            pixels = np.asarray(image)
    except (TypeError, *DECODE_ERRORS) as error:
        raise ValueError(f"its mask cannot be read ({error})") from error
    mask: np.ndarray = (pixels[:, :, -1] if pixels.ndim == 3 else pixels) > 0
    return mask


def _add_keypoint(shapes: list[Shape], point: Shape) -> None:
    """Add a point to the object of its group; a point without an object becomes a bad shape.

    Its label may start with the category of the object, as `detlite predict` writes it.
    """
    owners = [obj for obj in shapes if obj.group is not None and obj.group == point.group]
    owners = [obj for obj in owners if point.category.startswith(f"{obj.category} ")] or owners
    if len({obj.category for obj in owners}) == 1:
        name = point.category.removeprefix(f"{owners[0].category} ")
        x, y = point.corners
        owners[0].keypoints = {**owners[0].keypoints, name: (x, y, _VISIBLE)}
        return
    point.problem = (
        "a point is a keypoint if it has the group_id of one object. Remove it, or give both the "
        "same group_id"
    )
    shapes.append(point)
