"""Labels for annotation tools and training: COCO, YOLO, LabelMe, Label Studio and QuPath.

Each format but QuPath's writes copies of the images to the folder `images`, and all categories of
the model, also those of no object. An object has the polygons of its mask, or else its box, and its
keypoints. Parts of masks with holes are cut into polygons without holes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import yaml
from pycocotools import mask as rle_codec

from detlite.files.atomic_write import write_file
from detlite.structures.keypoints import keypoint_names
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.object_fields import own_values

from .outlines import outlines
from .writer import COCO_BEGIN, FORMATS, Entry, PredictionWriter, file_stem

_LABELME_VERSION = "5.5.0"  # version of the file format
# The tags and names of Label Studio's controls for each kind of part.
_CONTROLS = {
    "rectangle": ("RectangleLabels", "boxes"),
    "polygon": ("PolygonLabels", "masks"),
    "point": ("KeyPointLabels", "keypoints"),
}


class _LabelFiles(PredictionWriter):
    """Writes labels next to copies of the images."""

    copies_images = True
    has_fields = False

    @property
    def points(self) -> list[str]:
        return keypoint_names(list(self.model.categories))

    def parts(self, row: Entry) -> list[tuple[str, str, np.ndarray]]:
        """Return the kind, label and points [P, 2] of each part of an object.

        They are polygons of the mask or else two corners of the box, and the keypoints, in
        continuous coordinates.
        """
        name = self.model.names[row["category_id"]]
        parts = [("polygon", name, polygon) for polygon in _outlines(row)]
        parts = parts or [("rectangle", name, _box(row)[::2])]
        points = np.reshape(row.get("keypoints", ()), (-1, 1, 3))[..., :2]
        points = points + self.model.keypoint_center
        others = (f"keypoint {k + 1}" for k in range(len(self.points), len(points)))
        labels = (*self.points, *others)
        return parts + [("point", *point) for point in zip(labels, points, strict=False)]

    def write_text(self, name: str, text: str) -> None:
        write_file(self.folder / name, text.encode(errors="replace"))


@FORMATS.register("coco")
class CocoLabels(_LabelFiles):
    """Writes annotations.json, a COCO file, which CVAT reads as well."""

    outputs = (("annotations.json", COCO_BEGIN),)
    has_fields = True

    def add(self, entry: Entry, count: int) -> None:
        rows = enumerate(self.objects(entry), start=count + 1)
        self.files[0].append(*(json.dumps(self._annotation(row, k)) for k, row in rows))

    def end(self, images: Iterator[Entry]) -> None:
        kept = ("id", "height", "width")
        rows = ({**{key: x[key] for key in kept}, "file_name": x["copy"]} for x in images)
        self.files[0].complete(self.coco_end(rows))

    def _annotation(self, row: Entry, number: int) -> Entry:
        mask = row.get("segmentation")
        polygons = (_outlines(row) or [_box(row)]) if mask else []
        annotation = {
            "id": number, "image_id": row["image_id"], "category_id": row["category_id"],
            "bbox": row["bbox"], "iscrowd": 0, "score": row["score"],
            "area": int(rle_codec.area(mask)) if mask else row["bbox"][2] * row["bbox"][3],
            # CVAT requires the field also for boxes without masks.
            "segmentation": [polygon.ravel().tolist() for polygon in polygons],
            **own_values(row),
        }  # fmt: skip
        if points := row.get("keypoints"):
            visible = [2 if k % 3 == 2 else value for k, value in enumerate(points)]
            annotation |= {"keypoints": visible, "num_keypoints": len(points) // 3}
        return annotation


@FORMATS.register("yolo")
class YoloLabels(_LabelFiles):
    """Writes labels/*.txt with a line for each object, and data.yaml with the categories.

    A line is one polygon, in which bridges without area connect the parts of a mask; or a box, with
    keypoints if the model has any.
    """

    def add(self, entry: Entry, count: int) -> None:
        numbers = {row["id"]: number for number, row in enumerate(self.model.categories)}
        size = entry["image"]["width"], entry["image"]["height"]
        lines = []
        for row in self.objects(entry):
            words = (f"{value:.6f}" for value in self._values(row, size))
            lines.append(f"{numbers[row['category_id']]} {' '.join(words)}\n")
        name = Path(entry["image"]["copy"]).with_suffix(".txt").as_posix()
        self.write_text(f"labels/{name}", "".join(lines))

    def end(self, images: Iterator[Entry]) -> None:
        names = {number: row["name"] for number, row in enumerate(self.model.categories)}
        # Relative to this file. Ultralytics requires `val`.
        keys: dict[str, Any] = {"train": "images", "val": "images", "names": names}
        if points := self.points:
            keys |= {"kpt_shape": [len(points), 3], "kpt_names": dict.fromkeys(names, points)}
        self.write_text("data.yaml", yaml.safe_dump(keys, allow_unicode=True))

    def _values(self, row: Entry, size: tuple[int, int]) -> list[float]:
        points = np.reshape(row.get("keypoints", ()), (-1, 3))
        if row.get("segmentation") and not len(points):
            return list((_joined(_outlines(row) or [_box(row)]) / size).ravel().tolist())
        x, y, w, h = row["bbox"]
        xy = points[:, :2] / size  # as Ultralytics converts COCO's keypoints
        box = [(x + w / 2) / size[0], (y + h / 2) / size[1], w / size[0], h / size[1]]
        return [*box, *np.column_stack([xy, np.full(len(xy), 2)]).ravel().tolist()]


@FORMATS.register("labelme")
class LabelMeLabels(_LabelFiles):
    """Writes images/*.json, and labels.txt with the categories.

    An object is a polygon for each part of its mask, or else a rectangle, with its score as the
    description. The shapes of one object share a `group_id`.
    """

    def add(self, entry: Entry, count: int) -> None:
        image, shapes = entry["image"], list[Entry]()
        for number, row in enumerate(self.objects(entry)):
            name, parts = self.model.names[row["category_id"]], self.parts(row)
            shapes += [
                {
                    "label": f"{name} {label}" if kind == "point" else label,
                    "points": points.tolist(), "shape_type": kind,
                    "group_id": number if len(parts) > 1 else None,
                    "description": f"{row['score']:.4f}", "flags": {}, "mask": None,
                }
                for kind, label, points in parts
            ]  # fmt: skip
        content = {
            "version": _LABELME_VERSION, "flags": {}, "shapes": shapes,
            "imagePath": image["copy"], "imageData": None,
            "imageHeight": image["height"], "imageWidth": image["width"],
        }  # fmt: skip
        self.write_text(f"images/{Path(image['copy']).with_suffix('.json')}", json.dumps(content))

    def end(self, images: Iterator[Entry]) -> None:
        self.write_text("labels.txt", "".join(f"{row['name']}\n" for row in self.model.categories))


@FORMATS.register("label-studio")
class LabelStudioLabels(_LabelFiles):
    """Writes tasks.json with predictions, and labels.xml, the labeling configuration to choose.

    The controls of the configuration are "boxes", "masks" and "keypoints". The parts and keypoints
    of an object have its first region as parent.
    """

    outputs = (("tasks.json", "["),)

    def add(self, entry: Entry, count: int) -> None:
        self.files[0].append(json.dumps(self._task(entry)))

    def end(self, images: Iterator[Entry]) -> None:
        names = [row["name"] for row in self.model.categories]
        lines = ["<View>", '  <Image name="image" value="$image"/>']
        for kind, (tag, control) in _CONTROLS.items():
            if values := self.points if kind == "point" else names:
                lines += [f'  <{tag} name="{control}" toName="image">']
                lines += [f"    <Label value={quoteattr(str(value))}/>" for value in values]
                lines += [f"  </{tag}>"]
        self.write_text("labels.xml", "\n".join([*lines, "</View>", ""]))
        super().end(images)

    def _task(self, entry: Entry) -> Entry:
        image, objects, regions = entry["image"], [*self.objects(entry)], list[Entry]()
        path = quote(f"{self.folder.resolve().name}/images/{image['copy']}")
        percent = 100 / np.array([image["width"], image["height"]])
        for row in objects:
            parent: dict[str, str] = {}
            for kind, label, points in self.parts(row):
                tag, control = _CONTROLS[kind]
                region = {
                    "id": f"region{len(regions)}", "from_name": control, "to_name": "image",
                    "type": tag.lower(), "original_width": image["width"],
                    "original_height": image["height"], "image_rotation": 0,
                    "score": row["score"],
                    "value": {**_value(kind, points * percent), tag.lower(): [label]},
                }  # fmt: skip
                regions.append(region | parent)
                parent = parent or {"parentID": region["id"]}
        score = float(np.mean([row["score"] for row in objects] or [0]))
        result = {"model_version": "detlite", "score": score, "result": regions}
        return {"data": {"image": f"/data/local-files/?d={path}"}, "predictions": [result]}


def _value(kind: str, points: np.ndarray) -> Entry:
    """Return the value of a region in Label Studio, given its points in percent."""
    if kind == "polygon":
        return {"points": points.tolist(), "closed": True}
    (x, y), (right, bottom) = points[[0, -1]].tolist()
    if kind == "point":
        return {"x": x, "y": y, "width": 0.5}
    return {"x": x, "y": y, "width": right - x, "height": bottom - y, "rotation": 0}


@FORMATS.register("geojson")
class GeoJsonLabels(_LabelFiles):
    """Writes geojson/*.geojson for QuPath, in pixels of the image from its upper left corner."""

    copies_images = False
    has_fields = True

    def add(self, entry: Entry, count: int) -> None:
        features = [*map(self._feature, self.objects(entry))]
        content = json.dumps({"type": "FeatureCollection", "features": features})
        self.write_text(f"geojson/{file_stem(entry)}.geojson", content)

    def _feature(self, row: Entry) -> Entry:
        closed = [np.concatenate([p, p[:1]]) for p in _outlines(row) or [_box(row)]]
        return {
            "type": "Feature",
            "geometry": {"type": "MultiPolygon", "coordinates": [[x.tolist()] for x in closed]},
            "properties": {
                "objectType": "annotation",
                "classification": {"name": self.model.names[row["category_id"]]},
                "measurements": {"score": row["score"]},
                **own_values(row),
            },
        }


def _outlines(row: Entry) -> list[np.ndarray]:
    """Return the polygons [P, 2] of an object's mask, none without a mask or for an empty one."""
    mask = row.get("segmentation")
    return outlines(to_bitmap(mask, *mask["size"]) > 0) if mask else []


def _box(row: Entry) -> np.ndarray:
    """Return the corners [4, 2] of an object's box, from the upper left one clockwise."""
    x, y, w, h = row["bbox"]
    return np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)])


def _joined(polygons: list[np.ndarray]) -> np.ndarray:
    """Join polygons to one: from its start, a line leads to each of the others and back."""
    start = polygons[0][:1]
    there_and_back = [part for one in polygons[1:] for part in (one, one[:1], start)]
    return np.concatenate([polygons[0], *([start] if there_and_back else []), *there_and_back])
