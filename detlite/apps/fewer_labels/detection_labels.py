"""Detections of a model as labels, certain ones and uncertain ones."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pycocotools import mask as rle_codec
from tqdm import tqdm

from detlite.apps.batch_predict.predict_images import load_predictor, predict_images
from detlite.apps.batch_predict.result_files import Entry
from detlite.inference.predictor import Predictor

logger = logging.getLogger(__name__)

# Detections from this fraction of the score threshold on are uncertain, from the threshold certain.
_UNCERTAIN = 0.5


def detect(
    weights: str, files: Sequence[Path], opts: Sequence[Any], limit: int
) -> tuple[Predictor, list[tuple[Path, Entry]]]:
    """Detect certain and uncertain objects in images, and log those that cannot be read.

    Warns if most images have `limit` detections, the maximum of the model.

    Returns:
        A predictor with the model's score threshold, and each image that can be read with its
        entry, see `result_files`.
    """
    predictor = load_predictor(weights, None, opts)
    sensitive = load_predictor(weights, _UNCERTAIN * predictor.score_thresh, opts)
    entries = predict_images(sensitive, [str(file) for file in files], range(len(files)))
    found = []
    counted = tqdm(entries, total=len(files), unit=" images", disable=None)  # on a terminal
    for file, entry in zip(files, counted, strict=True):
        if "problem" in entry:
            logger.warning("left out: %s", entry["problem"])
        else:
            found.append((file, entry))
    full = sum(len(entry["objects"]) >= limit for _, entry in found)
    if full > len(found) / 2:
        logger.warning("%d of %d images have %d detections, the limit of the model: less certain "
                       "ones are missing. Train longer, or raise "
                       "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", full, len(found), limit)  # fmt: skip
    return predictor, found


def coco_labels(found: Iterable[tuple[str, Entry]], predictor: Predictor) -> dict[str, Any]:
    """Return the content of a COCO file of detections, given a file name and entry of each image.

    Uncertain detections are marked with "ignore": 1. Boxes without masks have an empty
    `segmentation`, because CVAT requires the field.
    """
    images: list[Entry] = []
    rows: list[Entry] = []
    for number, (name, entry) in enumerate(found, start=1):
        images.append(entry["image"] | {"id": number, "file_name": name})
        for row in entry["objects"]:
            mask = row.get("segmentation")
            area = row["bbox"][2] * row["bbox"][3] if mask is None else int(rle_codec.area(mask))
            if area:
                ignore = int(row["score"] < predictor.score_thresh)
                ids = {"id": len(rows) + 1, "image_id": number, "segmentation": mask or []}
                rows.append(row | ids | {"area": area, "iscrowd": 0, "ignore": ignore})
                if points := row.get("keypoints"):
                    visible = [2 if k % 3 == 2 else value for k, value in enumerate(points)]
                    rows[-1] |= {"keypoints": visible, "num_keypoints": len(points) // 3}
    return {"images": images, "annotations": rows, "categories": predictor.categories}
