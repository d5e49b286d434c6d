"""Read the files of VIA, Label Studio, Supervisely, CreateML and Datumaro."""

import base64
import csv
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detlite.data.errors import DataError
from detlite.data.loading.image_readers import DECODE_ERRORS
from detlite.structures.masks.formats import to_bitmap

from .file_tree import SPLITS, FileTree, read_json
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape, box_shape, ellipse_shape, flat

Json = dict[str, Any]
_CATEGORY_KEYS = ("class", "label", "name", "category", "type")  # attributes of VIA that name it
_NOT_AN_OBJECT = "a {} is not an object; remove it"
_SIDES = ("x", "y", "width", "height")


def via_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a project, a json or a csv file of VIA 1 or 2 (VGG Image Annotator)."""
    if file.suffix.lower() == ".csv":
        rows = _via_rows(file)
    else:
        content = read_json(file)
        rows = list(content.get("_via_img_metadata", content).values())
    for row in rows:
        if isinstance(row["regions"], dict):  # VIA 1
            row["regions"] = list(row["regions"].values())
    key = _category_key([one["region_attributes"] for row in rows for one in row["regions"]], file)
    for row in rows:
        yield ImageLabels(row["filename"], [_via_shape(one, key) for one in row["regions"]])


def _via_rows(file: Path) -> list[Json]:
    """Return the rows of a csv file, one for each region, as the images of a json file."""
    rows: dict[str, Json] = {}
    with file.open(encoding="utf-8-sig", newline="") as stream:
        for line in csv.DictReader(stream):
            name = line.get("filename") or line["#filename"]
            row = rows.setdefault(name, {"filename": name, "regions": []})
            region = {key: json.loads(line[key]) for key in line if key.startswith("region_")}
            if region["region_shape_attributes"]:
                region["shape_attributes"] = region["region_shape_attributes"]
                row["regions"].append(region)
    return list(rows.values())


def _category_key(attributes: list[Json], file: Path) -> str | None:
    """Return the attribute of regions that names the category, if there is any."""
    keys = sorted({key for one in attributes for key in one})
    usual = [key for key in keys if key.lower() in _CATEGORY_KEYS]
    best = usual if len(usual) == 1 else keys
    if len(best) > 1:
        raise DataError(
            f"{file}: regions have the attributes {', '.join(keys)}. Name the one with the "
            "category class, and the others otherwise"
        )
    return best[0] if best else None


def _via_shape(region: Json, key: str | None) -> Shape:
    value = region["region_attributes"].get(key) if key else "object"
    if isinstance(value, dict):  # check boxes
        value = ", ".join(name for name, checked in value.items() if checked)
    form, category = region["shape_attributes"], str(value or "")
    kind = form["name"]
    if kind == "rect":
        shape = box_shape(category, [form[side] for side in _SIDES])
    elif kind in ("circle", "ellipse"):
        radii = (form["r"], form["r"]) if kind == "circle" else (form["rx"], form["ry"])
        turn = float(np.rad2deg(form.get("theta", 0)))
        shape = ellipse_shape(category, (form["cx"], form["cy"]), radii, turn)
    else:
        points = zip(form.get("all_points_x", ()), form.get("all_points_y", ()), strict=True)
        problem = "" if kind == "polygon" else _NOT_AN_OBJECT.format(kind)
        shape = Shape(category, flat(list(points)), problem=problem)
    if not category:
        shape.problem = f"the region has no {key}"
    return shape


def label_studio_labels(
    file: Path, tree: FileTree, conversion: Conversion
) -> Iterator[ImageLabels]:
    """Yield the images of a JSON or JSON-MIN export of Label Studio."""
    for task in read_json(file):
        data = task.get("data", task)
        texts = [data.get("image"), *(one for one in data.values() if isinstance(one, str))]
        labels = ImageLabels(next(one for one in texts if one))
        # Old versions named them completions, and JSON-MIN has the regions of each control.
        done = task.get("annotations", task.get("completions")) if "data" in task else None
        if done is None:
            lists = [value for value in task.values() if isinstance(value, list)]
            regions = [{"value": one, **one} for many in lists for one in many]
        else:
            done = [one for one in done if not one.get("was_cancelled")]
            regions = done[0]["result"] if done else []
            if len(done) > 1:
                text = "The first one of each is used."
                conversion.findings.add(
                    "images annotated more than once", text, labels.name, "image"
                )
        names = {one.get("id"): _label(one["value"]) for one in regions if _label(one["value"])}
        owners: dict[Any, Shape] = {}
        for one in regions:
            value, number = one["value"], one.get("id")
            size = one.get("original_height", 0), one.get("original_width", 0)
            labels.size = size if all(size) else labels.size
            name = _label(value) or names.get(number, "")
            if "keypointlabels" in value and one.get("parentID") in owners:
                x, y = value["x"] * size[1] / 100, value["y"] * size[0] / 100
                owner = owners[one["parentID"]]
                owner.keypoints = {**owner.keypoints, name: (x, y, 2)}
            elif {"points", "rle", "x"} & set(value) and number not in owners:
                shape = _label_studio_shape(value, name, *size)
                shape.problem = shape.problem if name else "the region has no label"
                labels.shapes.append(shape)
                owners |= {} if number is None else {number: shape}
        yield labels


def _label(value: Json) -> str:
    """Return the label of a region, which is in `rectanglelabels`, `polygonlabels`, ..."""
    return next(
        (str(many[0]) for key, many in value.items() if key.endswith("labels") and many), ""
    )


def _label_studio_shape(value: Json, category: str, height: int, width: int) -> Shape:
    if "rle" in value:
        return Shape(category, mask=_decode_brush(value["rle"], height, width))
    if "points" in value:
        return Shape(
            category, flat([(x * width / 100, y * height / 100) for x, y in value["points"]])
        )
    x, y = value["x"] * width / 100, value["y"] * height / 100
    turn = float(value.get("rotation") or 0)
    if "radiusX" in value:
        radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
        return ellipse_shape(category, (x, y), radii, turn)
    if "height" not in value:
        return Shape(category, problem=_NOT_AN_OBJECT.format("keypoint without a parent region"))
    w, h = value["width"] * width / 100, value["height"] * height / 100
    return box_shape(category, (x, y, w, h), turn)


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
    for row in read_json(file):
        labels = ImageLabels(row.get("image") or row["imagefilename"])
        for one in row.get("annotations") or row.get("annotation") or []:
            x, y, w, h = (one["coordinates"][side] for side in _SIDES)
            labels.shapes.append(box_shape(one["label"], (x - w / 2, y - h / 2, w, h)))
        yield labels


def supervisely_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the image of an annotation file of Supervisely, `ann/a.jpg.json`."""
    content = read_json(file)
    if "objects" not in content:  # meta.json
        return
    labels = ImageLabels(file.stem, size=(content["size"]["height"], content["size"]["width"]))
    for one in content["objects"]:
        kind, category = one["geometryType"], one["classTitle"]
        points = one.get("points", {})
        problem = "" if kind == "polygon" else _NOT_AN_OBJECT.format(kind)
        holes = [flat(hole) for hole in points.get("interior", ())]
        shape = Shape(category, flat(points.get("exterior", ())), holes=holes, problem=problem)
        if kind == "bitmap":
            x, y = one["bitmap"]["origin"]
            shape = Shape(category, mask=_decode_png(one["bitmap"]["data"], file), origin=(x, y))
        elif kind == "rectangle":
            # Corners are pixels, and the last one belongs to the rectangle.
            (x1, y1), (x2, y2) = points["exterior"]
            x, y = min(x1, x2), min(y1, y2)
            shape = box_shape(category, (x, y, abs(x2 - x1) + 1, abs(y2 - y1) + 1))
        labels.shapes.append(shape)
    yield labels


def _decode_png(text: str, file: Path) -> np.ndarray:
    """Decode a mask of Supervisely: a PNG, compressed once more, in base64."""
    try:
        data = zlib.decompress(base64.b64decode(text))
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            pixels = np.asarray(image)
    except (*DECODE_ERRORS, zlib.error) as error:
        raise DataError(f"{file}: a bitmap cannot be read ({error})") from error
    return pixels[:, :, -1] > 0 if pixels.ndim == 3 else pixels > 0


def datumaro_labels(file: Path, tree: FileTree, conversion: Conversion) -> Iterator[ImageLabels]:
    """Yield the images of a json file of Datumaro, `annotations/<split>.json`."""
    content = read_json(file)
    names = [row["name"] for row in content["categories"]["label"]["labels"]]
    for item in content["items"]:
        media = item.get("image") or item.get("media") or {}
        labels = ImageLabels(media.get("path") or item["id"], size=media.get("size") or (0, 0))
        labels.split = SPLITS.get(file.stem.lower())
        for one in item["annotations"]:
            kind = one["type"]
            if kind in ("label", "caption"):  # of the whole image
                continue
            name = names[one["label_id"]]
            problem = "" if kind == "polygon" else _NOT_AN_OBJECT.format(kind)
            shape = Shape(name, one.get("points", ()), problem=problem)
            if kind == "bbox":
                shape = box_shape(name, one["bbox"])
            elif kind == "mask":
                shape = Shape(name, mask=to_bitmap(one["rle"], *one["rle"]["size"]) > 0)
            shape.group = one.get("group") or None
            shape.crowd = bool(one.get("attributes", {}).get("is_crowd"))
            labels.shapes.append(shape)
        yield labels
