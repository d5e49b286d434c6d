"""Read precomputed proposals for Fast R-CNN.

There are two file formats: pickles of detectron2 (`ids` or `indexes`, `boxes`, `objectness_logits`
or `scores`, `bbox_mode`), and COCO results, which the evaluation of a proposal network writes.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data.annotations.ids import Ids
from detlite.data.locations import local_copy, parse_location
from detlite.files.errors import DataError, RefusedPickleError
from detlite.files.json_files import read_json
from detlite.files.safe_pickle import read_pickle
from detlite.structures import boxes as box_ops

from .coco import CocoDataset

logger = logging.getLogger(__name__)

# detectron2's numbers of box formats; further ones are relative or rotated.
_BOX_MODES = {"0": "xyxy", "1": "xywh"}

# Boxes [N, 4] and scores [N] of each image as in the file, by its id as written.
_Proposals = dict[Any, tuple[Any, Any]]


def build_proposals(cfg: CfgNode, dataset: CocoDataset, phase: str) -> list[Tensor]:
    """Read the proposals of a dataset in DATASETS.TRAIN or TEST; `phase` is the key's name."""
    names, paths = cfg.DATASETS[phase], cfg.DATASETS[f"PROPOSAL_FILES_{phase}"]
    if dataset.name not in names or len(names) != len(paths):
        raise ConfigError(
            f"DATASETS.PROPOSAL_FILES_{phase} is {paths!r} and DATASETS.{phase} is {names!r}: "
            f"MODEL.LOAD_PROPOSALS needs one file per dataset, including one for {dataset.name}"
        )
    location = parse_location(paths[names.index(dataset.name)], parse_location(cfg.DATASETS.ROOT))
    limit = cfg.DATASETS[f"PRECOMPUTED_PROPOSAL_TOPK_{phase}"]
    with local_copy(location) as file:
        ids = Ids.of_entries(dataset.table.images(np.arange(len(dataset.table))))
        return load_proposals(file, dataset.image_ids, dataset.sizes, limit, location.name, ids)


def load_proposals(
    path: Path,
    image_ids: Sequence[Any],
    sizes: Sequence[tuple[int, int]],
    limit: int,
    name: str = "",
    ids: Ids | None = None,
) -> list[Tensor]:
    """Return the highest-scoring proposals of each image of a dataset.

    The file is a .pkl of detectron2 or a .json of COCO results; other images in it are ignored.
    `name` is its original name if `path` is a copy. `ids` are the dataset's ids in any notation.
    Raises DataError.

    Returns:
        For each image float32 [P, 4] xyxy in pixels, clipped to the image, not empty, in descending
        order of the scores.
    """
    pickled = (name or path.name).endswith(".pkl")
    box_format, by_image = _read_pickle(path) if pickled else _read_results(path)
    ids = ids or Ids(image_ids)
    by_image = {ids.number(written): found for written, found in by_image.items()}
    missing = [image_id for image_id in image_ids if image_id not in by_image]
    if missing:
        raise DataError(
            f"{path}: proposals are missing for {len(missing)} of {len(image_ids)} images, the "
            f"first of them image {missing[0]}. Are these the proposals of another dataset?"
        )
    proposals, total = [], 0
    for image_id, size in zip(image_ids, sizes, strict=True):
        boxes, scores = _checked(f"{path}: image {image_id}", *by_image[image_id])
        total += len(boxes)
        if box_format == "xywh":
            boxes[:, 2:] += boxes[:, :2]
        boxes = box_ops.clip(boxes, size).float()
        valid = box_ops.has_min_size(boxes, 0)
        order = scores[valid].argsort(descending=True, stable=True)[:limit]
        proposals.append(boxes[valid][order])
    kept = sum(map(len, proposals))
    logger.info("%s: kept the best %d of %d proposals of %d images (at most %d per image)",
                path, kept, total, len(proposals), limit)  # fmt: skip
    return proposals


def _read_pickle(path: Path) -> tuple[str, _Proposals]:
    try:
        content = read_pickle(path)
    except OSError as error:
        raise DataError(f"{path}: proposals cannot be read ({error.strerror})") from error
    except RefusedPickleError as error:
        raise DataError(
            f"{path}: contains a pickled {error}; only arrays, numbers and lists are allowed"
        ) from error
    except Exception as error:  # pickle raises various errors for damaged files
        raise DataError(f"{path}: not a pickle, or truncated or damaged") from error
    content = content if isinstance(content, dict) else {}
    # the newer names, then the older ones
    columns: list[Any] = [content.get("ids", content.get("indexes")), content.get("boxes"),
               content.get("objectness_logits", content.get("scores"))]  # fmt: skip
    are_lists = all(isinstance(values, list | tuple | np.ndarray) for values in columns)
    if not are_lists or len({*map(len, columns)}) > 1:
        raise DataError(
            f"{path}: not a proposal file, which is a dict of ids (or indexes), boxes and "
            "objectness_logits (or scores), with one of each per image"
        )
    mode = str(content.get("bbox_mode", 0))
    if mode not in _BOX_MODES:
        raise DataError(f"{path}: bbox_mode is {mode}, but must be 0 (xyxy) or 1 (xywh), absolute")
    by_image: _Proposals = {}
    for image_id, boxes, scores in zip(*columns, strict=True):
        if str(image_id) in by_image:
            raise DataError(f"{path}: image {image_id} occurs twice")
        by_image[str(image_id)] = boxes, scores
    return _BOX_MODES[mode], by_image


def _read_results(path: Path) -> tuple[str, _Proposals]:
    results = read_json(path)
    if not isinstance(results, list):
        raise DataError(f"{path}: not a COCO results file, which is a list of objects")
    by_image: _Proposals = {}
    for number, result in enumerate(results):
        try:
            boxes, scores = by_image.setdefault(result["image_id"], ([], []))
            boxes.append(result["bbox"])
            scores.append(result["score"])
        except (TypeError, KeyError) as error:
            raise DataError(
                f"{path}: result {number} is not an object with image_id, bbox and score"
            ) from error
    return "xywh", by_image


def _checked(where: str, boxes: Any, scores: Any) -> tuple[Tensor, Tensor]:
    try:
        boxes, scores = np.asarray(boxes, np.float64), np.asarray(scores, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: boxes or scores are not numbers, or differ in length") from error
    boxes = boxes.reshape(-1, 4) if boxes.size == 0 else boxes
    if boxes.shape != (len(scores), 4):
        problem = f"has boxes of shape {list(boxes.shape)} and {len(scores)} scores"
        raise DataError(f"{where}: {problem}, not boxes [N, 4] and N scores")
    finite = np.isfinite(boxes).all(1) & np.isfinite(scores)
    if not finite.all():
        n = int(finite.argmin())
        raise DataError(f"{where}: box {boxes[n].tolist()} with score {scores[n]} is not finite")
    return torch.from_numpy(boxes), torch.from_numpy(scores)
