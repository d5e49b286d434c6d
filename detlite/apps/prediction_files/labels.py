"""Labels for annotation tools and training: COCO, YOLO, LabelMe and Label Studio.

Each format writes copies of the images to the folder `images`, and all categories of the model,
also those of no object. An object has the polygons of its mask, or else its box, and its keypoints.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import torch
import yaml
from pycocotools import mask as rle_codec

from detlite.apps.prediction_writers import outlines, to_label_studio, to_labelme
from detlite.evaluation.detection_results import BACKGROUND_CATEGORY
from detlite.files.atomic_write import write_file
from detlite.structures.keypoints import keypoint_names
from detlite.structures.masks.formats import to_bitmap

from .writer import FORMATS, Entry, ModelInfo, PredictionWriter


class _LabelFiles(PredictionWriter):
    """Writes labels next to copies of the images."""

    copies_images = True

    @property
    def points(self) -> list[str]:
        return keypoint_names(list(self.model.categories))

    def write_text(self, name: str, text: str) -> None:
        write_file(self.folder / name, text.encode(errors="replace"))


@FORMATS.register("coco")
class CocoLabels(_LabelFiles):
    """Writes annotations.json, a COCO file, which CVAT reads as well."""

    outputs: ClassVar[Mapping[str, str]] = {"annotations.json": '{"annotations": ['}

    def add(self, entry: Entry) -> None:
        rows = (
            self._annotation(row, self.objects + number)
            for number, row in enumerate(_objects(entry), start=1)
        )
        self.files[0].write_list(rows)

    def _annotation(self, row: Entry, number: int) -> Entry:
        mask = row.get("segmentation")
        annotation = {
            "id": number, "image_id": row["image_id"], "category_id": row["category_id"],
            "bbox": row["bbox"], "iscrowd": 0, "score": row["score"],
            "area": int(rle_codec.area(mask)) if mask else row["bbox"][2] * row["bbox"][3],
            # CVAT requires the field also for boxes without masks.
            "segmentation": [polygon.ravel().tolist() for polygon in _polygons(row)],
        }  # fmt: skip
        if points := row.get("keypoints"):
            visible = [2 if k % 3 == 2 else value for k, value in enumerate(points)]
            annotation |= {"keypoints": visible, "num_keypoints": len(points) // 3}
        return annotation

    def finish(self, images: Iterable[Entry]) -> None:
        self.files[0].write('], "images": [')
        kept = ("id", "height", "width")
        rows = ({**{key: image[key] for key in kept}, "file_name": image["copy"]}
                for image in images)  # fmt: skip
        self.files[0].write_list(rows)
        self.files[0].write(f'], "categories": {json.dumps(list(self.model.categories))}}}\n')


@FORMATS.register("yolo")
class YoloLabels(_LabelFiles):
    """Writes labels/*.txt with a line for each object, and data.yaml with the categories.

    A line is one polygon, in which bridges without area connect the parts of a mask; or a box, with
    keypoints if the model has any.
    """

    def add(self, entry: Entry) -> None:
        numbers = {row["id"]: number for number, row in enumerate(self.model.categories)}
        size = entry["image"]["width"], entry["image"]["height"]
        lines = []
        for row in _objects(entry):
            words = (f"{value:.6f}" for value in self._values(row, size))
            lines.append(f"{numbers[row['category_id']]} {' '.join(words)}\n")
        name = Path(entry["image"]["copy"]).with_suffix(".txt").as_posix()
        self.write_text(f"labels/{name}", "".join(lines))

    def _values(self, row: Entry, size: tuple[int, int]) -> list[float]:
        points = np.reshape(row.get("keypoints", ()), (-1, 3))
        polygons = _polygons(row)
        if polygons and not len(points):
            return list((_joined(polygons) / size).ravel().tolist())
        x, y, w, h = row["bbox"]
        xy = points[:, :2] / size  # as Ultralytics converts COCO's keypoints
        box = [(x + w / 2) / size[0], (y + h / 2) / size[1], w / size[0], h / size[1]]
        return [*box, *np.column_stack([xy, np.full(len(xy), 2)]).ravel().tolist()]

    def finish(self, images: Iterable[Entry]) -> None:
        names = {number: row["name"] for number, row in enumerate(self.model.categories)}
        # Relative to this file. Ultralytics requires `val`.
        keys: dict[str, Any] = {"train": "images", "val": "images", "names": names}
        if points := self.points:
            keys |= {"kpt_shape": [len(points), 3], "kpt_names": dict.fromkeys(names, points)}
        self.write_text("data.yaml", yaml.safe_dump(keys, allow_unicode=True))


@FORMATS.register("labelme")
class LabelMeLabels(_LabelFiles):
    """Writes images/*.json, and labels.txt with the categories."""

    def add(self, entry: Entry) -> None:
        name = entry["image"]["copy"]
        content = to_labelme(_prediction(entry, self.model), name, self.points)
        self.write_text(f"images/{Path(name).with_suffix('.json')}", json.dumps(content))

    def finish(self, images: Iterable[Entry]) -> None:
        self.write_text("labels.txt", "".join(f"{row['name']}\n" for row in self.model.categories))


@FORMATS.register("label-studio")
class LabelStudioLabels(_LabelFiles):
    """Writes tasks.json with predictions, and labels.xml, the labeling configuration to choose."""

    outputs: ClassVar[Mapping[str, str]] = {"tasks.json": "["}

    def add(self, entry: Entry) -> None:
        path = quote(f"{self.folder.resolve().name}/images/{entry['image']['copy']}")
        task = to_label_studio(
            _prediction(entry, self.model),
            f"/data/local-files/?d={path}",
            keypoint_names=self.points,
        )
        self.files[0].write_list([task])

    def finish(self, images: Iterable[Entry]) -> None:
        self.files[0].write("]")
        names = [row["name"] for row in self.model.categories]
        controls = [("RectangleLabels", "boxes", names), ("PolygonLabels", "masks", names)]
        if self.points:
            controls.append(("KeyPointLabels", "keypoints", self.points))
        lines = ["<View>", '  <Image name="image" value="$image"/>']
        for tag, name, values in controls:
            lines += [f'  <{tag} name="{name}" toName="image">']
            lines += [f"    <Label value={quoteattr(str(value))}/>" for value in values]
            lines += [f"  </{tag}>"]
        self.write_text("labels.xml", "\n".join([*lines, "</View>", ""]))


def _objects(entry: Entry) -> Iterator[Entry]:
    """Yield the objects; the background, which some models detect, is none."""
    return (row for row in entry["objects"] if row["category_id"] != BACKGROUND_CATEGORY["id"])


def _polygons(row: Entry) -> list[np.ndarray]:
    """Return the polygons [P, 2] of an object's mask; of its box if the mask is empty."""
    if not (mask := row.get("segmentation")):
        return []
    x, y, w, h = row["bbox"]
    box = np.array([(x, y), (x + w, y), (x + w, y + h), (x, y + h)])
    return outlines(to_bitmap(mask, *mask["size"]) > 0) or [box]


def _joined(polygons: list[np.ndarray]) -> np.ndarray:
    """Join polygons to one: from its start, a line leads to each of the others and back."""
    start = polygons[0][:1]
    there_and_back = [part for one in polygons[1:] for part in (one, one[:1], start)]
    return np.concatenate([polygons[0], *([start] if there_and_back else []), *there_and_back])


def _prediction(entry: Entry, model: ModelInfo) -> Mapping[str, Any]:
    """Return an entry in the form of a `Prediction`."""
    rows, image, names = [*_objects(entry)], entry["image"], model.names
    boxes = torch.tensor([row["bbox"] for row in rows]).reshape(-1, 4)
    prediction: dict[str, Any] = {
        "size": (image["height"], image["width"]),
        "names": [names[row["category_id"]] for row in rows],
        "scores": torch.tensor([row["score"] for row in rows]),
        "boxes": torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1),
    }
    if masks := [row["segmentation"] for row in rows if "segmentation" in row]:
        prediction["masks"] = masks
    if points := [row["keypoints"] for row in rows if "keypoints" in row]:
        center = torch.tensor([model.keypoint_center, model.keypoint_center, 0.0])
        prediction["keypoints"] = torch.tensor(points).reshape(len(rows), -1, 3) + center
    return prediction
