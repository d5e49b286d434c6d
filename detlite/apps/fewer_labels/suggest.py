"""Suggest which images to label next, and write them with detections as labels to correct."""

import csv
import io
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from detlite.apps.batch_predict.result_files import Entry
from detlite.apps.prediction_writers import to_label_studio, to_labelme
from detlite.checkpoint.loading import read_model_checkpoint
from detlite.config import ConfigError
from detlite.data import build_dataset
from detlite.data.images.pixels import ImageOptions, build_image_options
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError
from detlite.inference.predictor import Predictor
from detlite.structures.keypoints import keypoint_names

from .detection_labels import coco_labels, detect
from .training import PSEUDO_LABELS
from .unlabeled_images import drop_duplicates, images_of, list_unlabeled

logger = logging.getLogger(__name__)


def _known_images(weights: str, opts: Sequence[Any]) -> tuple[list[Path], ImageOptions]:
    """Return the labeled images that a checkpoint was trained and evaluated on, if they exist.

    Also returns how it reads images.
    """
    cfg, _ = read_model_checkpoint(weights, opts)
    known: list[Path] = []
    labeled = [name for name in cfg.DATASETS.TRAIN if name != PSEUDO_LABELS]
    for name in (*labeled, *cfg.DATASETS.TEST):
        try:
            known += images_of([build_dataset(cfg, name, train=name in labeled)])
        except (ConfigError, DataError) as error:
            logger.warning("images of %s may be among the suggested ones: %s", name, error)
    return known, build_image_options(cfg)


def suggest(
    weights: str, inputs: Sequence[str], count: int, format: str, folder: Path, opts: Sequence[Any]
) -> str:
    """Write the images with most uncertain detections to a new folder, with the certain ones.

    See `detlite suggest` for the files and the arguments. Images with equally many uncertain
    detections are ranked by their number of certain ones.

    Returns:
        A sentence about the images.

    Raises:
        DataError: there is no image, none can be read, or the folder exists.
    """
    images = folder / "images"
    if images.exists():
        raise DataError(f"{images} exists already: choose another output folder")
    known, options = _known_images(weights, opts)
    files = drop_duplicates(list_unlabeled(inputs, known, options), known)
    predictor, found = detect(weights, files, opts)

    def counts(image: tuple[Path, Entry]) -> tuple[int, int]:
        scores = [row["score"] for row in image[1]["objects"]]
        certain = sum(score >= predictor.score_thresh for score in scores)
        return len(scores) - certain, certain

    chosen = sorted(found, key=counts, reverse=True)[:count]
    images.mkdir(parents=True)
    names = [f"{place:04d}_{file.name}" for place, (file, _) in enumerate(chosen, start=1)]
    table = io.StringIO()
    rows = csv.writer(table)
    rows.writerow(("name", "file", "uncertain", "certain"))
    for name, image in zip(names, chosen, strict=True):
        shutil.copyfile(image[0], images / name)
        rows.writerow((name, image[0], *counts(image)))
    write_file(folder / "suggestions.csv", table.getvalue().encode(errors="replace"))
    _write_labels(predictor, dict(zip(names, chosen, strict=True)), format, folder)
    return f"{len(chosen)} of {len(found)} images: see {folder}"


def _write_labels(
    predictor: Predictor, chosen: Mapping[str, tuple[Path, Entry]], format: str, folder: Path
) -> None:
    """Write the certain detections in images, given by their new names."""
    points, tasks = keypoint_names(predictor.categories), []
    if format == "coco":
        content = coco_labels(((name, entry) for name, (_, entry) in chosen.items()), predictor)
        content["annotations"] = [row for row in content["annotations"] if not row["ignore"]]
        _write_json(folder / "annotations.json", content)
        return
    for name, (file, _) in chosen.items():
        if format == "labelme":
            labels = folder / "images" / Path(name).with_suffix(".json")
            _write_json(labels, to_labelme(predictor(file), name, points))
        else:
            url = f"/data/local-files/?d={folder.name}/images/{name}"
            tasks.append(to_label_studio(predictor(file), url, keypoint_names=points))
    if tasks:
        _write_json(folder / "tasks.json", tasks)
        write_file(folder / "labels.xml", _labeling_config(predictor, points).encode())


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
