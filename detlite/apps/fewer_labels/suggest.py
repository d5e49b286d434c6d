"""Suggest which images to label next, and write them with detections as labels to correct."""

import csv
import io
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import yaml
from yacs.config import CfgNode

from detlite.apps.batch_predict.input_sources import output_stem
from detlite.apps.batch_predict.result_files import Entry
from detlite.apps.prediction_writers import outlines, to_label_studio, to_labelme
from detlite.checkpoint.loading import read_model_checkpoint
from detlite.config import ConfigError
from detlite.data import build_dataset
from detlite.data.images.pixels import ImageOptions, build_image_options
from detlite.data.images.reading import check_image
from detlite.data.images.sources import ImageSource
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError
from detlite.inference.predictor import Predictor
from detlite.structures.keypoints import keypoint_names
from detlite.structures.masks.formats import to_bitmap

from .detection_labels import coco_labels, detect
from .training import PSEUDO_LABELS
from .unlabeled_images import drop_duplicates, images_of, list_unlabeled

logger = logging.getLogger(__name__)


def _known_images(cfg: CfgNode) -> list[ImageSource]:
    """Return the labeled images that a model was trained and evaluated on, if they exist."""
    known: list[ImageSource] = []
    labeled = [name for name in cfg.DATASETS.TRAIN if name != PSEUDO_LABELS]
    for name in (*labeled, *cfg.DATASETS.TEST):
        try:
            known += images_of([build_dataset(cfg, name, train=name in labeled)])
        except (ConfigError, DataError) as error:
            logger.warning("images of %s may be among the suggested ones: %s", name, error)
    return known


def suggest(
    weights: str, inputs: Sequence[str], count: int, format: str, folder: Path, opts: Sequence[Any]
) -> str:
    """Write the images with most uncertain detections to a new folder, with the certain ones.

    See `detlite suggest` for the files and the arguments. Images with equally many uncertain
    detections are ranked by their number of certain ones.

    Returns:
        A sentence about the images.

    Raises:
        DataError: there is no new image, none can be read, or the folder is not empty.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise DataError(f"{folder} exists already and is not empty: choose another output folder")
    cfg, _ = read_model_checkpoint(weights, opts)
    known, options = _known_images(cfg), build_image_options(cfg)
    listed = list_unlabeled(inputs, known, options)
    files, limit = drop_duplicates(listed, known), cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG
    predictor, found = detect(weights, files, opts, limit)
    if not found:
        raise DataError(f"all {len(listed)} images are nearly identical to images of the training "
                        "and test sets, or cannot be read: add images")  # fmt: skip

    def counts(image: tuple[Path, Entry]) -> tuple[int, int]:
        scores = [row["score"] for row in image[1]["objects"]]
        certain = sum(score >= predictor.score_thresh for score in scores)
        return len(scores) - certain, certain

    chosen = sorted(found, key=counts, reverse=True)[:count]
    if not options.exif_orientation:
        _warn_of_turned(chosen, options)
    images = folder / "images"
    images.mkdir(parents=True)
    names = [f"{place:04d}_{output_stem(str(file))}{file.suffix}"
             for place, (file, _) in enumerate(chosen, start=1)]  # fmt: skip
    table = io.StringIO()
    rows = csv.writer(table)
    rows.writerow(("name", "file", "uncertain", "certain"))
    for name, image in zip(names, chosen, strict=True):
        shutil.copyfile(image[0], images / name)
        rows.writerow((name, image[0], *counts(image)))
    write_file(folder / "suggestions.csv", table.getvalue().encode(errors="replace"))
    _write_labels(predictor, dict(zip(names, chosen, strict=True)), format, folder)
    return f"{len(chosen)} of {len(found)} images: see {folder}"


def _warn_of_turned(chosen: Sequence[tuple[Path, Entry]], options: ImageOptions) -> None:
    """Warn of images that annotation tools turn by their EXIF orientation, unlike the model."""
    upright = replace(options, exif_orientation=True)
    turned = [
        file for file, entry in chosen
        if check_image(file, (entry["image"]["height"], entry["image"]["width"]), upright)[1] != 1
    ]  # fmt: skip
    if turned:
        logger.warning("%d of %d images have an EXIF orientation, such as %s. The model ignores "
                       "it, and annotation tools do not, so their labels do not fit: save these "
                       "images without it", len(turned), len(chosen), turned[0])  # fmt: skip


def _write_labels(
    predictor: Predictor, chosen: Mapping[str, tuple[Path, Entry]], format: str, folder: Path
) -> None:
    """Write the certain detections in images, given by their new names."""
    points, tasks = keypoint_names(predictor.categories), []
    if format in ("coco", "yolo"):
        content = coco_labels(((name, entry) for name, (_, entry) in chosen.items()), predictor)
        certain = [row for row in content["annotations"] if not row["ignore"]]
        content["annotations"] = [_with_polygons(row) for row in certain]
        if format == "yolo":
            _write_yolo(content, folder, predictor.model.convention.keypoint_center)
        else:
            _write_json(folder / "annotations.json", content)
        return
    for name, (file, _) in chosen.items():
        if format == "labelme":
            labels = folder / "images" / Path(name).with_suffix(".json")
            _write_json(labels, to_labelme(predictor(file), name, points))
        else:
            path = quote(f"{folder.resolve().name}/images/{name}")
            url = f"/data/local-files/?d={path}"
            tasks.append(to_label_studio(predictor(file), url, keypoint_names=points))
    if format == "labelme":
        names = "".join(f"{row['name']}\n" for row in predictor.categories)
        write_file(folder / "labels.txt", names.encode())
    else:
        _write_json(folder / "tasks.json", tasks)
        write_file(folder / "labels.xml", _labeling_config(predictor, points).encode())


def _with_polygons(row: Entry) -> Entry:
    """Return an annotation whose mask is polygons, which tools can edit, instead of an RLE."""
    if not (mask := row["segmentation"]):
        return row
    parts = outlines(to_bitmap(mask, *mask["size"]).astype(bool))
    return row | {"segmentation": [part.ravel().tolist() for part in parts]}


def _write_yolo(content: Mapping[str, Any], folder: Path, keypoint_center: float = 0) -> None:
    """Write data.yaml, and a text file for each image with a line for each object.

    YOLO has one polygon for each object, or else its box, with keypoints if there are any.
    """
    numbers = {row["id"]: number for number, row in enumerate(content["categories"])}
    lines: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for row in content["annotations"]:
        x, y, w, h = row["bbox"]
        width, height = sizes[row["image_id"]]
        values = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
        for column, line, visibility in np.reshape(row.get("keypoints", ()), (-1, 3)).tolist():
            values += [(column + keypoint_center) / width, (line + keypoint_center) / height]
            values.append(visibility)
        if len(values) == 4 and row["segmentation"]:
            polygon = np.reshape(max(row["segmentation"], key=_area), (-1, 2))
            values = (polygon / (width, height)).ravel().tolist()
        words = (f"{value:.6f}" for value in values)
        lines[row["image_id"]].append(f"{numbers[row['category_id']]} {' '.join(words)}\n")
    for image in content["images"]:
        file = folder / "labels" / Path(image["file_name"]).with_suffix(".txt")
        write_file(file, "".join(lines[image["id"]]).encode())
    names = {number: row["name"] for number, row in enumerate(content["categories"])}
    # Relative to this file. Ultralytics requires `val`.
    keys: dict[str, Any] = {"train": "images", "val": "images", "names": names}
    if points := keypoint_names(content["categories"]):
        keys |= {"kpt_shape": [len(points), 3], "kpt_names": {key: [*points] for key in names}}
    write_file(folder / "data.yaml", yaml.safe_dump(keys, allow_unicode=True).encode())


def _area(polygon: Sequence[float]) -> float:
    x, y = np.reshape(polygon, (-1, 2)).T
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)))


def _labeling_config(predictor: Predictor, points: Sequence[str]) -> str:
    """Return the labeling configuration of Label Studio that `to_label_studio` needs."""
    names = [row["name"] for row in predictor.categories]
    controls = {"RectangleLabels": ("boxes", names), "PolygonLabels": ("masks", names)}
    if points:
        controls["KeyPointLabels"] = "keypoints", [*points]
    lines = ["<View>", '  <Image name="image" value="$image"/>']
    for tag, (name, values) in controls.items():
        lines += [f'  <{tag} name="{name}" toName="image">']
        lines += [f"    <Label value={quoteattr(str(value))}/>" for value in values]
        lines += [f"  </{tag}>"]
    return "\n".join([*lines, "</View>", ""])


def _write_json(file: Path, content: Any) -> None:
    write_file(file, json.dumps(content).encode())
