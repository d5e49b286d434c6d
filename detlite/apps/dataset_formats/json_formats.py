"""Read the files of VIA, Label Studio, Supervisely, CreateML and Datumaro."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.datasets.coco_masks import read_segmentation
from detlite.files.errors import DataError
from detlite.files.json_files import read_json
from detlite.files.reading import open_text
from detlite.structures.masks.formats import to_bitmap

from .file_tree import SPLITS, UNLABELED, FileTree, is_image_name
from .labeled_dataset import Conversion
from .shapes import ImageLabels, MaskLimit, Shape, check_mask_size, flat, read_each, read_shape

Json = dict[str, Any]
_CATEGORY_KEYS = ("class", "label", "name", "category", "type")  # attributes of VIA that name it
_SIDES = ("x", "y", "width", "height")


def via_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a project, a json or a csv file of VIA 1 or 2 (VGG Image Annotator)."""
    if file.suffix.lower() == ".csv":
        images = _via_rows(file)
    else:
        content = read_json(file)
        rows = content.get("_via_img_metadata", content).values()
        images = [(row["filename"], row["regions"]) for row in rows]
    # VIA 1 numbers the regions: {"0": region, ...}.
    images = [(name, [*rs.values()] if isinstance(rs, dict) else rs) for name, rs in images]
    key = _category_key([region for _, regions in images for region in regions], file)
    yield from read_each(
        lambda row: ImageLabels(row[0], [_via_region(region, key) for region in row[1]]),
        images, file, conversion,
    )  # fmt: skip


def _via_rows(file: Path) -> list[tuple[str, Any]]:
    """Return the names of the images in a csv file, and their regions."""
    images: dict[str, list[Json]] = {}
    with open_text(file, "utf-8-sig") as stream:
        for line in csv.DictReader(stream):
            regions = images.setdefault(line.get("filename") or line["#filename"], [])
            if shape := json.loads(line["region_shape_attributes"]):
                attributes = json.loads(line["region_attributes"])
                regions.append({"shape_attributes": shape, "region_attributes": attributes})
    return list(images.items())


def _category_key(regions: list[Json], file: Path) -> str | None:
    """Return the attribute of regions that names the category, if there is any."""
    keys = sorted({key for region in regions for key in region["region_attributes"]})
    usual = [key for key in keys if key.lower() in _CATEGORY_KEYS]
    best = usual if len(usual) == 1 else keys
    if len(best) > 1:
        raise DataError(
            f"{file}: regions have the attributes {', '.join(keys)}. Rename the attribute that "
            "contains the category to class, and the others to other names"
        )
    return best[0] if best else None


def _via_region(region: Json, key: str | None) -> Shape:
    value = region["region_attributes"].get(key) if key else "object"
    if isinstance(value, dict):  # check boxes
        value = ", ".join(name for name, checked in value.items() if checked)
    return read_shape(_via_shape, str(value or ""), region["shape_attributes"])


def _via_shape(category: str, row: Json) -> Shape:
    kind = row["name"]
    if kind == "rect":
        return Shape.box(category, [float(row[side]) for side in _SIDES])
    if kind in ("circle", "ellipse"):
        radii = (row["r"], row["r"]) if kind == "circle" else (row["rx"], row["ry"])
        degrees = float(np.rad2deg(row.get("theta", 0)))
        return Shape.ellipse(category, (row["cx"], row["cy"]), radii, degrees)
    points = zip(row.get("all_points_x", ()), row.get("all_points_y", ()), strict=True)
    return Shape.of_kind(kind, category, flat(list(points)))


def label_studio_labels(
    file: Path, tree: FileTree, conversion: Conversion
) -> Iterator[ImageLabels]:
    """Yield the images of a JSON or JSON-MIN export of Label Studio."""
    read = partial(_label_studio_image, conversion)
    yield from read_each(read, read_json(file), file, conversion)


def _label_studio_image(conversion: Conversion, task: Json) -> ImageLabels:
    """Return the image of a task with the regions of its first annotation."""
    data = task.get("data", task)
    texts = [text for text in (data.get("image"), *data.values()) if text and isinstance(text, str)]
    labels = ImageLabels(max(texts, key=is_image_name, default=""))
    if "data" not in task:  # JSON-MIN has a list of regions for each control
        rows = [row for value in task.values() if isinstance(value, list) for row in value]
        # Lists of texts are choices.
        regions = [{"value": row, **row} for row in rows if isinstance(row, dict)]
    else:
        # Old versions named annotations completions.
        annotations = task.get("annotations", task.get("completions")) or []
        annotations = [entry for entry in annotations if not entry.get("was_cancelled")]
        labels.split = None if annotations else UNLABELED
        results = annotations[0]["result"] if annotations else []
        regions = [region if isinstance(region, dict) else {} for region in results]
        regions = [region for region in regions if region.get("type") != "relation"]
        if len(annotations) > 1:
            what, text = "images annotated more than once", "The first one of each is used."
            conversion.findings.add(what, text, labels.name, "image")
    names = {region.get("id"): _labels(region)[0] for region in regions if _labels(region)}
    owners: dict[Any, Shape] = {}
    limit = MaskLimit()
    for region in sorted(regions, key=lambda region: "keypointlabels" in str(region.get("value"))):
        value, number, parent = region.get("value"), region.get("id"), region.get("parentID")
        size = region.get("original_height", 0), region.get("original_width", 0)
        labels.size = size if all(size) else labels.size
        name = next(iter(_labels(region)), names.get(number, ""))
        if len(_labels(region)) > 1:
            text = "The first label of each is used."
            conversion.findings.add("regions with several labels", text, labels.name, "region")
        if not isinstance(value, dict):
            labels.shapes.append(Shape(name, problem="has no value: export it again"))
        elif region.get("image_rotation"):
            problem = "is drawn on an image that Label Studio rotates: rotate it back there"
            labels.shapes.append(Shape(name, problem=problem))
        elif "keypointlabels" in value and parent in owners:
            point = read_shape(_label_studio_point, name, value, *size)
            if point.problem:
                labels.shapes.append(point)
            else:
                x, y = point.corners
                owners[parent].keypoints = {**owners[parent].keypoints, name: (x, y, 2)}
        elif {"points", "rle", "x", "y"} & set(value) and number not in owners:
            labels.shapes.append(read_shape(_label_studio_shape, name, value, *size, limit))
            if "points" in value:  # a polygon may be a part of another one, see `to_label_studio`
                is_part = parent in owners and owners[parent].group is not None
                labels.shapes[-1].group = parent if is_part else number
            owners |= {} if number is None else {number: labels.shapes[-1]}
    return labels


def _labels(region: Json) -> list[str]:
    """Return the labels of a region, which are in `rectanglelabels`, `polygonlabels`, ..."""
    value = region.get("value")
    items = value.items() if isinstance(value, dict) else ()
    labels = (names for key, names in items if key.endswith("labels") and names)
    return [*map(str, next(labels, ()))]


def _label_studio_point(category: str, value: Json, height: int, width: int) -> Shape:
    return Shape(category, [value["x"] * width / 100, value["y"] * height / 100])


def _label_studio_shape(
    category: str, value: Json, height: int, width: int, limit: MaskLimit
) -> Shape:
    if "rle" in value:
        return Shape.of_bitmap(category, _decode_brush(value["rle"], height, width), limit)
    if "points" in value:
        points = [(x * width / 100, y * height / 100) for x, y in value["points"]]
        return Shape(category, flat(points))
    x, y = _label_studio_point(category, value, height, width).corners
    degrees = float(value.get("rotation") or 0)
    if "radiusX" in value:
        radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
        return Shape.ellipse(category, (x, y), radii, degrees)
    if "height" not in value:
        return Shape.of_kind("keypoint without a parent region", category)
    w, h = value["width"] * width / 100, value["height"] * height / 100
    return Shape.box(category, (x, y, w, h), degrees)


def _decode_brush(data: Sequence[int], height: int, width: int) -> np.ndarray:
    """Decode a brush mask of Label Studio, bit-packed runs of RGBA values, to bool [H, W]."""
    text = "".join(f"{byte:08b}" for byte in data)
    position = 0

    def read(bits: int) -> int:
        nonlocal position
        position += bits
        return int(text[position - bits : position], 2)

    check_mask_size(height, width)
    count, word = read(32), read(5) + 1
    lengths = [read(4) + 1 for _ in range(4)]
    values = np.zeros(height * width * 4, np.uint8)
    start = 0
    while start < count:
        repeated = read(1)
        end = start + 1 + read(lengths[read(2)])
        values[start:end] = read(word) if repeated else [read(word) for _ in range(start, end)]
        start = end
    return values.reshape(height, width, 4)[:, :, 3] > 0


def createml_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of Apple's CreateML json."""
    yield from read_each(_createml_image, read_json(file), file, conversion)


def _createml_image(row: Json) -> ImageLabels:
    rows = row.get("annotations") or row.get("annotation") or []
    shapes = [read_shape(_createml_shape, entry.get("label", ""), entry) for entry in rows]
    return ImageLabels(row.get("image") or row["imagefilename"], shapes)


def _createml_shape(category: str, row: Json) -> Shape:
    x, y, w, h = (float(row["coordinates"][side]) for side in _SIDES)
    return Shape.box(category, (x - w / 2, y - h / 2, w, h))


def supervisely_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the image of an annotation file of Supervisely, `ann/a.jpg.json`."""
    content = read_json(file)
    if "objects" not in content:  # meta.json
        return
    labels = ImageLabels(file.stem, size=(content["size"]["height"], content["size"]["width"]))
    limit = MaskLimit()
    for row in content["objects"]:
        labels.shapes.append(read_shape(_supervisely_shape, row.get("classTitle", ""), row, limit))
    yield labels


def _supervisely_shape(category: str, row: Json, limit: MaskLimit) -> Shape:
    kind, points = row["geometryType"], row.get("points", {})
    if kind == "bitmap":
        x, y = row["bitmap"]["origin"]
        return Shape.png(category, row["bitmap"]["data"], (x, y), limit, compressed=True)
    if kind == "rectangle":
        # Corners are pixel indices, and the last pixel belongs to the rectangle.
        (x1, y1), (x2, y2) = points["exterior"]
        x, y = min(x1, x2), min(y1, y2)
        return Shape.box(category, (x, y, abs(x2 - x1) + 1, abs(y2 - y1) + 1))
    shape = Shape.of_kind(kind, category, flat(points.get("exterior", ())))
    shape.holes = [flat(hole) for hole in points.get("interior", ())]
    return shape


def datumaro_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a json file of Datumaro, `annotations/<split>.json`."""
    content = read_json(file)
    names = dict(enumerate(row["name"] for row in content["categories"]["label"]["labels"]))
    read = partial(_datumaro_image, names, file.stem)
    yield from read_each(read, content["items"], file, conversion)


def _datumaro_image(names: Mapping[int, str], subset: str, item: Json) -> ImageLabels:
    media, split = item.get("image") or item.get("media") or {}, SPLITS.get(subset.lower())
    path = f"{subset}/{media.get('path') or item['id']}"  # in images/
    labels = ImageLabels(path, [], media.get("size") or (0, 0), split)
    limit = MaskLimit()
    for row in item["annotations"]:
        if row.get("type") not in ("label", "caption"):  # these describe the whole image
            name = names.get(row.get("label_id"), "")
            labels.shapes.append(read_shape(partial(_datumaro_shape, names), name, row, limit))
    return labels


def _datumaro_shape(names: Mapping[int, str], category: str, row: Json, limit: MaskLimit) -> Shape:
    kind = row["type"]
    shape = Shape.of_kind(kind, category, row.get("points", ()))
    if kind == "bbox":
        (x, y, w, h), degrees = row["bbox"], float(row.get("attributes", {}).get("rotation", 0))
        shape = Shape.box(category, (x, y, w, h), degrees, (x + w / 2, y + h / 2))
    elif kind == "skeleton":
        points = {
            names[part["label_id"]]: (*part["points"], part["visibility"][0])
            for part in row["elements"]
        }
        shape = Shape.skeleton(category, points)
    elif kind == "mask":
        height, width = row["rle"]["size"]
        check_mask_size(height, width)
        mask = read_segmentation(row["rle"], height, width)
        if mask.problem:
            shape.problem = f"its {mask.problem}"
        else:
            shape = Shape.of_bitmap(category, to_bitmap(mask.value, height, width) > 0, limit)
    shape.group = row.get("group") or None
    shape.crowd = bool(row.get("attributes", {}).get("is_crowd"))
    return shape
