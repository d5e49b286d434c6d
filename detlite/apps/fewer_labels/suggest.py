"""Suggest which images to label next, and write them with detections as labels to correct."""

import csv
import io
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from detlite.apps.batch_predict.predict_images import load_predictor, predict_images
from detlite.apps.prediction_writers import coco_annotations, to_label_studio, to_labelme
from detlite.checkpoint.loading import read_model_checkpoint
from detlite.config import ConfigError
from detlite.data import build_dataset
from detlite.files.atomic_write import write_file
from detlite.files.errors import DataError
from detlite.inference.predictor import Predictor
from detlite.structures.keypoints import keypoint_names

from .training import PSEUDO_LABELS, UNCERTAIN
from .unlabeled_images import drop_duplicates, images_of, list_unlabeled

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Suggestion:
    """An image to label, and its number of detections above and below the score threshold."""

    file: Path
    certain: int
    uncertain: int


def known_images(weights: str, opts: Sequence[Any] = ()) -> list[Path]:
    """Return the labeled images that a checkpoint was trained and evaluated on, if they exist."""
    cfg, _ = read_model_checkpoint(weights, opts)
    known = []
    labeled = [name for name in cfg.DATASETS.TRAIN if name != PSEUDO_LABELS]
    for name in (*labeled, *cfg.DATASETS.TEST):
        try:
            known += images_of([build_dataset(cfg, name, train=name in labeled)])
        except (ConfigError, DataError) as error:
            logger.warning("images of %s may be among the suggested ones: %s", name, error)
    return known


def suggest(
    weights: str,
    inputs: Sequence[str],
    known: Sequence[Path] = (),
    opts: Sequence[Any] = (),
    skipped: Callable[[str], object] = print,
) -> tuple[Predictor, list[Suggestion]]:
    """Rank images: those with most uncertain detections first, without near-duplicates.

    A detection is uncertain if its score is between half of the model's score threshold and the
    threshold. Images with equally many are ranked by their number of certain detections.

    Args:
        weights: checkpoint or exported model.
        inputs: local images, see `list_images`.
        known: labeled images, which are left out together with their near-duplicates.
        opts: config overrides.
        skipped: called with the problem of each image that cannot be read.

    Returns:
        The predictor, which detects certain objects, and the images.

    Raises:
        DataError: there is no image, or none can be read.
    """
    predictor = load_predictor(weights, None, opts)
    threshold = predictor.score_thresh
    files = list_unlabeled(inputs, known, predictor.image_options)
    files = drop_duplicates(files, known)
    sensitive = load_predictor(weights, UNCERTAIN * threshold, opts)
    names, found = [str(file) for file in files], []
    entries = predict_images(sensitive, names, range(len(names)))
    for file, entry in zip(files, entries, strict=True):
        if "problem" in entry:
            skipped(entry["problem"])
            continue
        certain = sum(row["score"] >= threshold for row in entry["objects"])
        found.append(Suggestion(file, certain, len(entry["objects"]) - certain))
    return predictor, sorted(found, key=lambda image: (-image.uncertain, -image.certain))


def write_labels(
    predictor: Predictor, chosen: Sequence[Suggestion], format: str, folder: Path
) -> None:
    """Copy images to `folder`/images, and write the detections of a predictor as their labels.

    The names start with the rank. suggestions.csv lists the original files. The labels are in
    annotations.json (coco; also for CVAT), next to the images (labelme), or in tasks.json and
    labels.xml (label-studio).
    """
    images = folder / "images"
    try:
        images.mkdir(parents=True)
    except FileExistsError as error:
        raise DataError(f"{images} exists already: choose another output folder") from error
    points = keypoint_names(predictor.categories)
    tasks, rows, annotations = [], [], list[dict[str, Any]]()
    table = io.StringIO()
    csv.writer(table).writerow(("rank", "file", "certain", "uncertain"))
    for rank, image in enumerate(chosen, start=1):
        name = f"{rank:04d}_{image.file.name}"
        shutil.copyfile(image.file, images / name)
        csv.writer(table).writerow((rank, image.file, image.certain, image.uncertain))
        prediction = predictor(image.file)
        if format == "labelme":
            _write_json((images / name).with_suffix(".json"), to_labelme(prediction, name, points))
        elif format == "label-studio":
            url = f"/data/local-files/?d={folder.name}/images/{name}"
            tasks.append(to_label_studio(prediction, url, keypoint_names=points))
        else:
            height, width = prediction["size"]
            rows.append({"id": rank, "file_name": name, "height": height, "width": width})
            annotations += coco_annotations(prediction, rank, len(annotations) + 1)
    if format == "coco":
        content = {"images": rows, "annotations": annotations, "categories": predictor.categories}
        _write_json(folder / "annotations.json", content)
    elif format == "label-studio":
        _write_json(folder / "tasks.json", tasks)
        write_file(folder / "labels.xml", _labeling_config(predictor, points).encode())
    write_file(folder / "suggestions.csv", table.getvalue().encode(errors="replace"))


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
