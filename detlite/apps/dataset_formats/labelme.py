"""Read LabelMe's json files, one for each image (https://github.com/wkentaro/labelme).

Polygons, rectangles, circles and masks are objects. Shapes with the same label and group form one
object, and points in the group of an object are its keypoints.
"""

import base64
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detlite.data.images.pillow import SAFE_FORMATS, open_pillow
from detlite.data.images.sources import DECODE_ERRORS
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import read_json

from .file_tree import OUTPUT_FOLDER, FileTree
from .labeled_dataset import Conversion
from .shapes import ImageLabels, MaskLimit, Shape, flat

_MIN_POINTS = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2, "point": 1, "rotation": 3,
               "oriented_rectangle": 4}  # fmt: skip
_VISIBLE = 2
# Labels of regions with unlabeled objects, and of regions without objects.
NO_OBJECTS = ("__ignore__", "_background_")


def labelme_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the labels of a file's image; nothing if another program wrote the file."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        return
    size = content.get("imageHeight") or 0, content.get("imageWidth") or 0
    labels = ImageLabels(str(content.get("imagePath") or ""), size=size)
    points: list[Shape] = []
    limit = MaskLimit()
    for index, row in enumerate(content["shapes"]):
        row = row if isinstance(row, dict) else {}
        shape = _shape(row, limit)
        shape.group = row.get("group_id")
        name = f" ({shape.category})" if shape.category else ""
        shape.where = f": shapes[{index}]{name}"
        if shape.category in NO_OBJECTS:
            text = "They are ignored: neither trained on nor evaluated."
            what = f"regions labeled {shape.category}"
            conversion.findings.add(what, text, str(file), "region")
            if shape.category == "_background_":
                continue
            shape.category, shape.crowd = "", True
        is_point = row.get("shape_type") == "point" and not shape.problem
        (points if is_point else labels.shapes).append(shape)
    for point in points:
        _add_keypoint(labels.shapes, point)
    if content.get("imageData"):
        try:
            tree.image(labels.name, file, one_each=True)
        except DataError:
            labels.file = _write_image(content["imageData"], file, tree, conversion)
    yield labels


def _shape(row: dict[str, Any], limit: MaskLimit) -> Shape:
    kind, points = row.get("shape_type") or "polygon", row.get("points")
    label = row.get("label")
    category = str(label) if isinstance(label, (str, int)) else ""
    if not isinstance(points, list) or not all(map(_is_point, points)):
        return Shape(category, problem=f"points is {short_repr(points)}, not a list of [x, y]")
    if kind not in _MIN_POINTS:
        return Shape.of_kind(kind, category, flat(points))
    if len(points) < _MIN_POINTS[kind]:
        problem = f"a {kind} of {len(points)} points needs {_MIN_POINTS[kind]}"
        return Shape(category, flat(points), problem=problem)
    if kind == "mask":
        origin = round(points[0][0]), round(points[0][1])
        return Shape.png(category, row.get("mask"), origin, limit)
    if kind == "circle":
        return Shape.ellipse(category, points[0], [math.dist(points[0], points[1])] * 2)
    return Shape(category, flat(points), polygon=kind != "rectangle")


def _is_point(point: Any) -> bool:
    numbers = isinstance(point, list) and all(type(value) in (int, float) for value in point)
    return numbers and len(point) == 2 and all(map(math.isfinite, point))


def _add_keypoint(shapes: list[Shape], point: Shape) -> None:
    """Add a point to the object of its group; a point without an object becomes a bad shape.

    Its label may start with the category of the object, as `to_labelme` writes it.
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


def _write_image(text: str, file: Path, tree: FileTree, conversion: Conversion) -> Path:
    """Write the image that is stored in a json file. Raises DataError."""
    try:
        data = base64.b64decode(text)
        with open_pillow(io.BytesIO(data), SAFE_FORMATS) as image:
            suffix = f".{image.format}".lower()
    except (TypeError, *DECODE_ERRORS) as error:
        raise DataError(f"{file}: the image in it (imageData) cannot be read ({error})") from error
    folder = (conversion.output or tree.root / OUTPUT_FOLDER) / "images"
    path = (folder / file.relative_to(tree.root)).with_suffix(suffix)
    write_file(path, data)
    effect = f"They are written to {folder}."
    conversion.findings.add("images that are stored in json files", effect, str(file), "image")
    return path
