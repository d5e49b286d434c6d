"""Read CVAT's own XML: "CVAT for images 1.1" and "CVAT for video 1.1".

Boxes, polygons, masks and ellipses are objects, and the points of a skeleton are keypoints. Shapes
with the same label and group form one object. Tags are not read.
"""

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .file_tree import SPLITS, FileTree, read_xml
from .labeled_dataset import AS_BACKGROUND, Conversion
from .shapes import ImageLabels, MaskLimit, Shape, as_incomplete, read_each, read_shape

_NOT_SHAPES = ("tag", "attribute")


def cvat_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a file, or the frames of a video: frame_000000.*, frame_000001.*, ..."""
    root = read_xml(file)
    yield from read_each(_image, root.iter("image"), file, conversion)
    frames: defaultdict[int, list[Shape]] = defaultdict(list)
    limits: defaultdict[str | None, MaskLimit] = defaultdict(MaskLimit)
    for number, track in enumerate(root.iter("track"), start=1):
        for node in track:
            if node.tag not in _NOT_SHAPES and node.get("outside") != "1":
                limit = limits[node.get("frame")]
                shape = read_shape(_shape, track.get("label", ""), node, limit)
                with conversion.collect(AS_BACKGROUND), as_incomplete(f"{file}: track {number}: "):
                    frames[int(node.attrib["frame"])].append(shape)
    size = next(map(_size, root.iter("original_size")), (0, 0))
    for number, shapes in sorted(frames.items()):
        yield ImageLabels(f"frame_{number:06d}", shapes, size)


def _image(node: ET.Element) -> ImageLabels:
    subset = node.get("subset", "")  # a folder in the export of a project
    labels = ImageLabels(f"{subset}/{node.attrib['name']}".strip("/"), size=_size(node))
    labels.split = SPLITS.get(subset.lower())
    nodes = (child for child in node if child.tag not in _NOT_SHAPES)
    limit = MaskLimit()
    labels.shapes = [read_shape(_shape, child.get("label", ""), child, limit) for child in nodes]
    return labels


def _size(node: ET.Element) -> tuple[int, int]:
    """Return (height, width): attributes of an image node, child nodes of a video node."""
    values = (node.get(side) or node.findtext(side) or "0" for side in ("height", "width"))
    height, width = (round(float(value)) for value in values)
    return height, width


def _shape(label: str, node: ET.Element, limit: MaskLimit) -> Shape:
    shape = Shape.of_kind(node.tag, label, _points(node) if node.get("points") else ())
    values, degrees = node.attrib, float(node.get("rotation") or 0)
    if node.tag == "box":
        x1, y1, x2, y2 = (float(values[key]) for key in ("xtl", "ytl", "xbr", "ybr"))
        center = (x1 + x2) / 2, (y1 + y2) / 2
        shape = Shape.box(label, (x1, y1, x2 - x1, y2 - y1), degrees, center)
    elif node.tag == "ellipse":
        x, y, rx, ry = (float(values[key]) for key in ("cx", "cy", "rx", "ry"))
        shape = Shape.ellipse(label, (x, y), (rx, ry), degrees)
    elif node.tag == "mask":
        left, top, width, height = (int(values[key]) for key in ("left", "top", "width", "height"))
        runs = [int(run) for run in values["rle"].split(",")]  # row by row, background first
        if sum(runs) != height * width:
            raise ValueError(f"its runs have {sum(runs)} pixels, but it has {width}x{height}")
        limit.check(height, width)
        mask = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
        shape = Shape(label, mask=mask, origin=(left, top))
    elif node.tag == "skeleton":
        points = [point for point in node.iter("points") if point.get("outside") != "1"]
        shape = Shape.skeleton(
            label, {point.get("label", ""): _keypoint(point) for point in points}
        )
    shape.group = group if (group := values.get("group_id", "0")) != "0" else None
    return shape


def _keypoint(node: ET.Element) -> tuple[float, float, int]:
    x, y = _points(node)
    return x, y, 1 if node.get("occluded") == "1" else 2


def _points(node: ET.Element) -> list[float]:
    points = filter(None, node.attrib["points"].split(";"))
    return [float(value) for point in points for value in point.split(",")]
