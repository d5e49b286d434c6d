"""Regions that were proposed beforehand, for Fast R-CNN: read, checked and put in order.

Two forms of files: detectron2's pickles (`ids` or `indexes`, `boxes`, `objectness_logits` or
`scores`, `bbox_mode`), and COCO results, which evaluating region proposals alone leaves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_convert, clip_boxes_to_image

from detlite.data.errors import DataError
from detlite.data.safe_pickle import RefusedPickleError, read_pickle
from detlite.structures import boxes as box_ops

logger = logging.getLogger(__name__)

# detectron2's numbers of what a box's values say; further ones are relative or rotated.
_BOX_MODES = {"0": "xyxy", "1": "xywh"}

# Of an image: boxes [N, 4] as their file has them, and scores [N]. Found by the image's id as
# text, for files spell the same ids as numbers or as strings.
Found = tuple[Any, Any]


def load_proposals(
    path: Path,
    image_ids: Sequence[Any],
    sizes: Sequence[tuple[int, int]],
    most: int,
    name: str = "",
) -> list[Tensor]:
    """The best proposals of each image of a data set, at most `most` of an image.

    `path` is a .pkl of detectron2, or a .json of COCO results, in which further images are passed
    over. `sizes` are (height, width). `name` is that of the file, where `path` is a copy of it.

    Returns:
        For each image float32 [P, 4] xyxy in the picture's pixels, clipped to it, none empty, by
        decreasing score.

    Raises:
        DataError: a file that is missing or of neither form, that lacks an image, or whose boxes
            or scores are not finite numbers, as many of the one as of the other.
    """
    form, found = (
        _read_pickle(path) if (name or path.name).endswith(".pkl") else _read_results(path)
    )
    missing = [image_id for image_id in image_ids if str(image_id) not in found]
    if missing:
        raise DataError(
            f"{path}: has no proposals of {len(missing)} of {len(image_ids)} images, the first of "
            f"them image {missing[0]}; are these the proposals of another data set?"
        )
    proposals = []
    given = 0
    for image_id, size in zip(image_ids, sizes, strict=True):
        boxes, scores = _checked(path, image_id, *found[str(image_id)])
        given += len(boxes)
        if form == "xywh":
            boxes = box_convert(boxes, "xywh", "xyxy")
        boxes = clip_boxes_to_image(boxes, size).float()
        usable = box_ops.has_min_size(boxes, 0)
        order = scores[usable].argsort(descending=True, stable=True)[:most]
        proposals.append(boxes[usable][order])
    kept = [len(boxes) for boxes in proposals]
    logger.info(
        "%s: %d proposals of %d images; kept the best %d (at most %d of an image, %d images have "
        "none)", path, given, len(kept), sum(kept), most, kept.count(0),
    )  # fmt: skip
    return proposals


def _read_pickle(path: Path) -> tuple[str, dict[str, Found]]:
    try:
        content = read_pickle(path)
    except OSError as error:
        raise DataError(f"{path}: proposals cannot be read ({error.strerror})") from error
    except RefusedPickleError as error:
        raise DataError(
            f"{path}: holds a pickled {error}; proposals are arrays, numbers and lists alone"
        ) from error
    except Exception as error:  # whatever pickle raises depends on the bytes
        raise DataError(f"{path}: not a pickle, or truncated or damaged") from error
    if not isinstance(content, dict):
        content = {}
    # the later names, then the older
    ids: Any = content.get("ids", content.get("indexes"))
    boxes: Any = content.get("boxes")
    scores: Any = content.get("objectness_logits", content.get("scores"))
    if not all(isinstance(values, list | tuple | np.ndarray) for values in (ids, boxes, scores)):
        raise DataError(
            f"{path}: not a file of proposals, which is a dict of ids (or indexes), boxes and "
            "objectness_logits (or scores)"
        )
    mode = str(content.get("bbox_mode", 0))
    if mode not in _BOX_MODES:
        raise DataError(f"{path}: bbox_mode is {mode}, but must be 0 (xyxy) or 1 (xywh), absolute")
    if not len(ids) == len(boxes) == len(scores):
        raise DataError(
            f"{path}: {len(ids)} ids, {len(boxes)} boxes and {len(scores)} scores: there must be "
            "one of each for an image"
        )
    found: dict[str, Found] = {}
    for image_id, own_boxes, own_scores in zip(ids, boxes, scores, strict=True):
        if str(image_id) in found:
            raise DataError(f"{path}: image {image_id} occurs twice")
        found[str(image_id)] = own_boxes, own_scores
    return _BOX_MODES[mode], found


def _read_results(path: Path) -> tuple[str, dict[str, Found]]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: proposals cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{path}: not a json file ({error})") from error
    if not isinstance(results, list):
        raise DataError(f"{path}: not a COCO results file, which is a list of objects")
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for number, result in enumerate(results):
        try:
            image_id, box, score = (result[name] for name in ("image_id", "bbox", "score"))
        except (TypeError, KeyError) as error:
            raise DataError(
                f"{path}: result {number} is no object with image_id, bbox and score"
            ) from error
        boxes, scores = found.setdefault(str(image_id), ([], []))
        boxes.append(box)
        scores.append(score)
    return "xywh", dict(found)


def _checked(path: Path, image_id: Any, boxes: Any, scores: Any) -> tuple[Tensor, Tensor]:
    """Boxes float64 [N, 4] and scores [N] of an image."""
    where = f"{path}: image {image_id}"
    try:
        boxes, scores = np.asarray(boxes, np.float64), np.asarray(scores, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}: boxes or scores are not numbers, or of uneven lengths"
        ) from error
    boxes = boxes.reshape(-1, 4) if boxes.size == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise DataError(f"{where}: boxes must be [N, 4], not {list(boxes.shape)}")
    scores = scores.reshape(-1) if scores.shape == (len(boxes), 1) else scores
    if scores.shape != (len(boxes),):
        raise DataError(f"{where}: {len(boxes)} boxes, but scores of shape {list(scores.shape)}")
    for name, values in (("box", boxes), ("score", scores)):
        if not np.isfinite(values).all():
            place = int(np.argwhere(~np.isfinite(values))[0, 0])
            raise DataError(f"{where}: {name} {place} is {values[place].tolist()}, not finite")
    return torch.from_numpy(boxes), torch.from_numpy(scores)
