"""Many pictures by name: what `detlite predict` and a stage of Ray Data do with each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from detlite.apps.export.exported_detector import SUFFIXES
from detlite.config import ConfigError
from detlite.data.errors import DataError
from detlite.evaluation.results import coco_results
from detlite.inference.predictor import Prediction, Predictor, read_predictor

from .input_sources import load_picture
from .prediction_pipeline import predict_stream
from .result_files import Entry

# What of a config an exported graph does not hold.
_FREE = (
    "TEST.TILE", "TEST.TILE_OVERLAP", "TEST.IMS_PER_BATCH", "DATASETS.MAX_PIXELS",
    "INPUT.IMAGE_BITS", "TEST.BBOX_AUG.ENABLED",
)  # fmt: skip


def load_predictor(
    weights: str,
    threshold: float,
    opts: Sequence[Any] = (),
    config: str | None = None,
    max_pixels: int | None = None,
) -> Predictor:
    """The model of a checkpoint or an exported file, giving masks as RLEs.

    Args:
        opts, config: see `Predictor.from_checkpoint`; of an exported file, overrides of how
            pictures are read and cut into tiles alone.
        max_pixels: of a picture, where DATASETS.MAX_PIXELS does not allow fewer.

    Raises:
        CheckpointError, ConfigError: see `Predictor.from_checkpoint`; or it needs proposals, or an
            exported file is to have another config.
    """
    if Path(weights).suffix in SUFFIXES.values():
        keys = (key for key in dict.fromkeys(opts[::2]) if key not in _FREE)
        fixed = [*(["--config"] if config else []), *keys]
        if fixed:
            raise ConfigError(
                f"{weights}: an exported model has its config in it, which {', '.join(fixed)} "
                "cannot change: name the checkpoint, or export it anew"
            )
        predictor = read_predictor(weights, opts, threshold, rle=True)
    else:
        predictor = Predictor.from_checkpoint(weights, opts, config, threshold, rle=True)
    if predictor.model.takes_proposals:
        raise ConfigError(
            f"{weights}: a Fast R-CNN needs proposals for each picture: call a Predictor "
            "with them, or evaluate a data set that has them (`detlite test`)"
        )
    if max_pixels is not None:
        predictor.max_pixels = min(predictor.max_pixels, max_pixels)
    return predictor


def done_picture(
    predictor: Predictor, image_id: int, name: str, picture: Tensor, found: Prediction
) -> Entry:
    """What is written of a picture uint8 [3, H, W] and what a predictor found in it."""
    _, height, width = picture.shape
    image = {"id": image_id, "file_name": name, "height": height, "width": width}
    results = coco_results(
        image_id, found["boxes"], found["scores"], found["category_ids"],
        found.get("masks"), found.get("keypoints"), predictor.model.convention.keypoint_center,
    )  # fmt: skip
    return {"image": image, "objects": list(results.to_coco())}


def predict_each(
    predictor: Predictor,
    pictures: Sequence[str],
    ids: Sequence[int],
    batch_size: int = 1,
    threads: int = 2,
    draw: Callable[[int, Tensor, Prediction], None] | None = None,
) -> Iterator[Entry]:
    """Detects in pictures that paths or addresses name, as `predict_stream` does.

    Args:
        predictor: as `load_predictor` gives it.
        ids: of the pictures.
        draw: called with the id of a picture, the picture uint8 [3, H, W] and its prediction, in
            some thread, in any order.

    Yields:
        A done picture for each, in order, see `formats`.
    """

    def done(place: int, picture: Tensor, found: Prediction) -> Entry:
        if draw is not None:
            draw(ids[place], picture, found)
        return done_picture(predictor, ids[place], pictures[place], picture, found)

    load = partial(load_picture, predictor)
    stream = predict_stream(predictor, pictures, done, batch_size, threads, load)
    for image_id, name, one in zip(ids, pictures, stream, strict=True):
        if isinstance(one, DataError):
            yield {"image": {"id": image_id, "file_name": name}, "problem": str(one)}
        else:
            yield one
