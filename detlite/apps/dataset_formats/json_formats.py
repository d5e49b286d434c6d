"""Read the files of VIA, Label Studio, Supervisely, CreateML and Datumaro."""

import csv
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.datasets.coco_masks import read_segmentation
from detlite.data.errors import DataError
from detlite.data.file_type import read_json
from detlite.structures.masks.formats import to_bitmap

from .file_tree import SPLITS, FileTree, is_image_name
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape, flat, read_each, read_shape

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
    # VIA 1 numbers the regions.
    images = [(name, [*many.values()] if isinstance(many, dict) else many) for name, many in images]
    key = _category_key([one for _, many in images for one in many], file)
    yield from read_each(
        lambda row: ImageLabels(row[0], [_via_region(one, key) for one in row[1]]),
        images, file, conversion,
    )  # fmt: skip


def _via_rows(file: Path) -> list[tuple[str, Any]]:
    """Return the names of the images in a csv file, and their regions."""
    regions: dict[str, list[Json]] = {}
    with file.open(encoding="utf-8-sig", newline="") as stream:
        for line in csv.DictReader(stream):
            many = regions.setdefault(line.get("filename") or line["#filename"], [])
            if form := json.loads(line["region_shape_attributes"]):
                attributes = json.loads(line["region_attributes"])
                many.append({"shape_attributes": form, "region_attributes": attributes})
    return list(regions.items())


def _category_key(regions: list[Json], file: Path) -> str | None:
    """Return the attribute of regions that names the category, if there is any."""
    keys = sorted({key for one in regions for key in one["region_attributes"]})
    usual = [key for key in keys if key.lower() in _CATEGORY_KEYS]
    best = usual if len(usual) == 1 else keys
    if len(best) > 1:
        raise DataError(
            f"{file}: regions have the attributes {', '.join(keys)}. Name the one with the "
            "category class, and the others otherwise"
        )
    return best[0] if best else None


def _via_region(region: Json, key: str | None) -> Shape:
    value = region["region_attributes"].get(key) if key else "object"
    if isinstance(value, dict):  # check boxes
        value = ", ".join(name for name, checked in value.items() if checked)
    return read_shape(_via_shape, str(value or ""), region["shape_attributes"])


def _via_shape(category: str, form: Json) -> Shape:
    kind = form["name"]
    if kind == "rect":
        return Shape.box(category, [float(form[side]) for side in _SIDES])
    if kind in ("circle", "ellipse"):
        radii = (form["r"], form["r"]) if kind == "circle" else (form["rx"], form["ry"])
        turn = float(np.rad2deg(form.get("theta", 0)))
        return Shape.ellipse(category, (form["cx"], form["cy"]), radii, turn)
    points = zip(form.get("all_points_x", ()), form.get("all_points_y", ()), strict=True)
    corners = flat(list(points))
    return (
        Shape(category, corners)
        if kind == "polygon"
        else Shape.not_an_object(kind, category, corners)
    )


def label_studio_labels(
    file: Path, tree: FileTree, conversion: Conversion
) -> Iterator[ImageLabels]:
    """Yield the images of a JSON or JSON-MIN export of Label Studio."""
    read = partial(_label_studio_image, conversion)
    yield from read_each(read, read_json(file), file, conversion)


def _label_studio_image(conversion: Conversion, task: Json) -> ImageLabels:
    """Return the image of a task with the regions of its first annotation."""
    data = task.get("data", task)
    texts = [one for one in (data.get("image"), *data.values()) if one and isinstance(one, str)]
    labels = ImageLabels(max(texts, key=is_image_name, default=""))
    # Old versions named them completions, and JSON-MIN has the regions of each control.
    done = task.get("annotations", task.get("completions")) if "data" in task else None
    if done is None:
        lists = [value for value in task.values() if isinstance(value, list)]
        # Lists of texts are choices.
        regions = [{"value": one, **one} for many in lists for one in many if isinstance(one, dict)]
    else:
        done = [one for one in done if not one.get("was_cancelled")]
        results = done[0]["result"] if done else []
        regions = [one if isinstance(one, dict) else {} for one in results]
        regions = [one for one in regions if one.get("type") != "relation"]
        if len(done) > 1:
            what, text = "images annotated more than once", "The first one of each is used."
            conversion.findings.add(what, text, labels.name, "image")
    names = {one.get("id"): _labels(one)[0] for one in regions if _labels(one)}
    owners: dict[Any, Shape] = {}
    for one in sorted(regions, key=lambda one: "keypointlabels" in str(one.get("value"))):
        value, number, parent = one.get("value"), one.get("id"), one.get("parentID")
        size = one.get("original_height", 0), one.get("original_width", 0)
        labels.size = size if all(size) else labels.size
        name = next(iter(_labels(one)), names.get(number, ""))
        if len(_labels(one)) > 1:
            text = "The first label of each is used."
            conversion.findings.add("regions with several labels", text, labels.name, "region")
        if not isinstance(value, dict):
            labels.shapes.append(Shape(name, problem="has no value: export it again"))
        elif "keypointlabels" in value and parent in owners:
            point = read_shape(_label_studio_point, name, value, *size)
            if point.problem:
                labels.shapes.append(point)
            else:
                x, y = point.corners
                owners[parent].keypoints = {**owners[parent].keypoints, name: (x, y, 2)}
        elif {"points", "rle", "x", "y"} & set(value) and number not in owners:
            labels.shapes.append(read_shape(_label_studio_shape, name, value, *size))
            owners |= {} if number is None else {number: labels.shapes[-1]}
    return labels


def _labels(region: Json) -> list[str]:
    """Return the labels of a region, which are in `rectanglelabels`, `polygonlabels`, ..."""
    value = region.get("value")
    items = value.items() if isinstance(value, dict) else ()
    labels = (many for key, many in items if key.endswith("labels") and many)
    return [*map(str, next(labels, ()))]


def _label_studio_point(category: str, value: Json, height: int, width: int) -> Shape:
    return Shape(category, [value["x"] * width / 100, value["y"] * height / 100])


def _label_studio_shape(category: str, value: Json, height: int, width: int) -> Shape:
    if "rle" in value:
        return Shape(category, mask=_decode_brush(value["rle"], height, width))
    if "points" in value:
        points = [(x * width / 100, y * height / 100) for x, y in value["points"]]
        return Shape(category, flat(points))
    x, y = _label_studio_point(category, value, height, width).corners
    turn = float(value.get("rotation") or 0)
    if "radiusX" in value:
        radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
        return Shape.ellipse(category, (x, y), radii, turn)
    if "height" not in value:
        return Shape.not_an_object("keypoint without a parent region", category)
    w, h = value["width"] * width / 100, value["height"] * height / 100
    return Shape.box(category, (x, y, w, h), turn)


def _decode_brush(data: Sequence[int], height: int, width: int) -> np.ndarray:
    """Decode the brush mask bool [H, W] of Label Studio: RGBA values in runs of packed bits."""
    text = "".join(f"{byte:08b}" for byte in data)
    position = 0

    def read(bits: int) -> int:
        nonlocal position
        position += bits
        return int(text[position - bits : position], 2)

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
    shapes = [read_shape(_createml_shape, one.get("label", ""), one) for one in rows]
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
    for one in content["objects"]:
        labels.shapes.append(read_shape(_supervisely_shape, one.get("classTitle", ""), one))
    yield labels


def _supervisely_shape(category: str, row: Json) -> Shape:
    kind, points = row["geometryType"], row.get("points", {})
    if kind == "bitmap":
        x, y = row["bitmap"]["origin"]
        return Shape.png(category, row["bitmap"]["data"], (x, y), compressed=True)
    if kind == "rectangle":
        # Corners are pixels, and the last one belongs to the rectangle.
        (x1, y1), (x2, y2) = points["exterior"]
        x, y = min(x1, x2), min(y1, y2)
        return Shape.box(category, (x, y, abs(x2 - x1) + 1, abs(y2 - y1) + 1))
    corners = flat(points.get("exterior", ()))
    if kind == "polygon":
        return Shape(category, corners, holes=[flat(hole) for hole in points.get("interior", ())])
    return Shape.not_an_object(kind, category, corners)


def datumaro_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a json file of Datumaro, `annotations/<split>.json`."""
    content = read_json(file)
    names = [row["name"] for row in content["categories"]["label"]["labels"]]
    split = SPLITS.get(file.stem.lower())
    yield from read_each(partial(_datumaro_image, names, split), content["items"], file, conversion)


def _datumaro_image(names: Sequence[str], split: str | None, item: Json) -> ImageLabels:
    media = item.get("image") or item.get("media") or {}
    labels = ImageLabels(media.get("path") or item["id"], [], media.get("size") or (0, 0), split)
    for one in item["annotations"]:
        number = one.get("label_id")
        name = names[number] if number in range(len(names)) else ""
        if one.get("type") not in ("label", "caption"):  # of the whole image
            labels.shapes.append(read_shape(_datumaro_shape, name, one))
    return labels


def _datumaro_shape(category: str, row: Json) -> Shape:
    kind = row["type"]
    shape = Shape.not_an_object(kind, category, row.get("points", ()))
    if kind == "bbox":
        (x, y, w, h), degrees = row["bbox"], float(row.get("attributes", {}).get("rotation", 0))
        shape = Shape.box(category, (x, y, w, h), degrees, (x + w / 2, y + h / 2))
    elif kind == "polygon":
        shape.problem = ""
    elif kind == "mask":
        height, width = row["rle"]["size"]
        mask = read_segmentation(row["rle"], height, width)
        if mask.problem:
            shape.problem = f"its {mask.problem}"
        else:
            shape = Shape(category, mask=to_bitmap(mask.value, height, width) > 0)
    shape.group = row.get("group") or None
    shape.crowd = bool(row.get("attributes", {}).get("is_crowd"))
    return shape
