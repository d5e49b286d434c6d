"""Load a predictor and detect objects in images that are named by paths and URLs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from detlite.apps.export.exported_detector import SUFFIXES
from detlite.apps.prediction_files.measures import add_measures
from detlite.apps.prediction_files.writer import Entry
from detlite.config import ConfigError
from detlite.evaluation.detection_results import coco_results
from detlite.files.errors import DataError
from detlite.inference.inputs import split_page
from detlite.inference.predictor import Prediction, Predictor, Threshold
from detlite.structures.masks.rotated_box import area, rotated_box

from .prediction_pipeline import predict_stream

# The config keys that can be changed in an exported model.
_CHANGEABLE_KEYS = (
    "TEST.TILE", "TEST.IMS_PER_BATCH", "DATASETS.MAX_PIXELS",
    "INPUT.IMAGE_BITS", "TEST.BBOX_AUG.ENABLED",
)  # fmt: skip


def load_predictor(
    weights: str | Sequence[str],
    threshold: Threshold | None,
    opts: Sequence[Any] = (),
    config: str | None = None,
    max_pixels: int | None = None,
    trust: bool = False,
) -> Predictor:
    """Load the predictor of checkpoints or exported models; it returns masks as RLEs.

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
    files = [weights] if isinstance(weights, str) else list(weights)
    weights = ", ".join(files)
    if any(Path(file).suffix in SUFFIXES.values() for file in files):
        fixed = ["--config"] if config else []
        fixed += [key for key in dict.fromkeys(opts[::2]) if key not in _CHANGEABLE_KEYS]
        if fixed:
            raise ConfigError(
                f"{weights}: the config of an exported model is fixed: {', '.join(fixed)} cannot "
                "be changed. Use the checkpoint, or export it again"
            )
    predictor = Predictor.from_checkpoint(files, opts, config, threshold, rle=True, trust=trust)
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


def predict_images(
    predictor: Predictor,
    images: Sequence[str],
    ids: Sequence[int],
    batch_size: int = 1,
    threads: int = 2,
    save: Callable[[Entry, Tensor, Prediction], None] | None = None,
    measured: bool = False,
) -> Iterator[Entry]:
    """Yield an entry for each path or URL, in order, see `prediction_files.writer`.

    `save` is called with the entry of an image, the image uint8 [C, H, W] and its prediction, in
    any thread and order. With `measured`, the objects have `measures`.
    """

    def finish(index: int, image: Tensor, prediction: Prediction) -> Entry:
        info = _image_info(ids[index], images[index])
        entry = make_entry(predictor, info, image, prediction, measured)
        if save is not None:
            save(entry, image, prediction)
        return entry

    stream = predict_stream(predictor, images, finish, batch_size, threads)
    for image_id, name, entry in zip(ids, images, stream, strict=True):
        if isinstance(entry, DataError):
            entry = {"image": _image_info(image_id, name), "problem": str(entry)}
        yield entry


def make_entry(
    predictor: Predictor,
    info: Entry,
    image: Tensor,
    prediction: Prediction,
    measured: bool = False,
) -> Entry:
    """Return the entry of an image uint8 [C, H, W], with `info` about it, and its prediction."""
    objects = coco_objects(info["id"], prediction, predictor.model.convention.keypoint_center)
    if measured:
        add_measures(objects, image.numpy())
    _, height, width = image.shape
    return {"image": {**info, "height": height, "width": width}, "objects": objects}


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


def _image_info(image_id: int, name: str) -> Entry:
    file, page = split_page(name)
    return {"id": image_id, "file_name": file, **({} if page is None else {"page": page})}
