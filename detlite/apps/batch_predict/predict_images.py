"""Load a predictor, and convert its predictions to COCO results."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detlite.apps.export.exported_detector import SUFFIXES
from detlite.apps.prediction_files.writer import Entry
from detlite.config import ConfigError
from detlite.evaluation.detection_results import coco_results
from detlite.inference.predictor import Prediction, Predictor, Threshold
from detlite.structures.masks.rotated_box import area, rotated_box

# The config keys that can be changed in an exported model.
_CHANGEABLE_KEYS = (
    "TEST.TILE", "TEST.IMS_PER_BATCH", "DATASETS.MAX_PIXELS",
    "INPUT.IMAGE_BITS", "TEST.BBOX_AUG.ENABLED",
)  # fmt: skip


def load_predictor(
    weights: str,
    threshold: Threshold | None,
    opts: Sequence[Any] = (),
    config: str | None = None,
    max_pixels: int | None = None,
    trust: bool = False,
) -> Predictor:
    """Load the predictor of a checkpoint or exported model; it returns masks as RLEs.

    Args:
        threshold: minimum score of detections; None: see `Predictor`.
        opts, config: see `Predictor.from_checkpoint`. For an exported model, only the keys that
            control the reading and tiling of images can be changed.
        max_pixels: limit of the image size, if smaller than DATASETS.MAX_PIXELS.
        trust: see `Predictor`.

    Raises:
        CheckpointError, ConfigError: see `Predictor.from_checkpoint`; or the model needs proposals,
            or the config of an exported model was to be changed.
    """
    if Path(weights).suffix in SUFFIXES.values():
        fixed = ["--config"] if config else []
        fixed += [key for key in dict.fromkeys(opts[::2]) if key not in _CHANGEABLE_KEYS]
        if fixed:
            raise ConfigError(
                f"{weights}: the config of an exported model is fixed: {', '.join(fixed)} cannot "
                "be changed. Use the checkpoint, or export it again"
            )
    predictor = Predictor.from_checkpoint(weights, opts, config, threshold, rle=True, trust=trust)
    if predictor.model.takes_proposals:
        raise ConfigError(
            f"{weights}: a Fast R-CNN needs proposals for each image: call a Predictor with them, "
            "or evaluate a dataset that has them (`detlite test`)"
        )
    if max_pixels is not None:
        options = predictor.image_options
        limit = min(options.max_pixels, max_pixels)
        predictor.image_options = replace(options, max_pixels=limit)
    return predictor


def coco_objects(
    image_id: int, prediction: Prediction, keypoint_center: float, count: int | None = None
) -> list[Entry]:
    """Return the first `count` (None: all) objects of a prediction with RLEs as COCO results.

    Those of masks also have their `area` and `rotated_box`. `keypoint_center` is described in
    `Convention`.
    """
    results = coco_results(
        image_id, prediction["boxes"], prediction["scores"], prediction["category_ids"],
        prediction.get("masks"), prediction.get("keypoints"), keypoint_center,
        prediction.extra_fields,
    )  # fmt: skip
    objects = list(results.to_coco(0, count))
    for row in objects:
        if mask := row.get("segmentation"):
            row.update(area=area(mask), rotated_box=rotated_box(mask))
    return objects
