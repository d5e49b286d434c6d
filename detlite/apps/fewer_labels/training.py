"""Train with images without labels: a run on the labels, its detections, and a run on both.

    OUTPUT_DIR/unlabeled/config.yaml         the config of the whole run, from which it resumes
    OUTPUT_DIR/unlabeled/labels_only/        the first half, a run on the labels
    OUTPUT_DIR/unlabeled/pseudo_labels.json  what its model detects, as a COCO file
    OUTPUT_DIR/unlabeled/detection.json      the folder of these images, and how long it took
    OUTPUT_DIR/                              the second half, a run on the labels and these

Both halves are ordinary runs. The second one starts with the averaged weights of the first one.
Self-training with hard labels: Sohn et al., https://arxiv.org/abs/2005.04757. Uncertain detections
are neither objects nor background, as in Xu et al., https://arxiv.org/abs/2106.09018.
"""

import json
import logging
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from yacs.config import CfgNode

from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError, expand_path, load_config
from detlite.data import build_dataset, build_test_datasets, build_train_dataset
from detlite.data.images.pixels import build_image_options
from detlite.data.images.sources import ImageSource
from detlite.distributed import barrier, gather_objects, is_main, rank, world_size
from detlite.engine.hooks import Hook
from detlite.engine.resuming import newest_checkpoint
from detlite.engine.run import UNLABELED_RUNS, run_training
from detlite.engine.run_files import (
    AVERAGE_CHECKPOINT,
    CONFIG_FILE,
    FINAL_CHECKPOINT,
    FIRST_HALF,
    files_of_run,
    stored_config,
    write_config,
)
from detlite.evaluation.metrics import Metrics
from detlite.files.atomic_write import atomic_open, make_folder
from detlite.files.download import is_url
from detlite.files.errors import DataError
from detlite.files.json_files import read_json

from .detection_labels import coco_labels, detect
from .unlabeled_images import drop_duplicates, images_of, list_unlabeled

logger = logging.getLogger(__name__)

PSEUDO_LABELS = "pseudo_labels"  # name of the second dataset
_DETECTION = "detection.json"


@UNLABELED_RUNS.register("run")
def run_with_unlabeled(
    cfg: CfgNode, resume: bool = False, hooks: Sequence[Hook] = ()
) -> dict[str, Metrics]:
    """Train on the labels and on DATASETS.UNLABELED; every process calls it.

    Each half has half of the iterations, epochs or minutes. Detecting takes part of the minutes of
    the second one. `hooks` are called in both.

    Returns:
        The metrics of the second half, see `run_training`.

    Raises:
        ConfigError: the output folder contains another run, or a dataset is called pseudo_labels.
        DataError: DATASETS.UNLABELED contains no image that can be used.
    """
    folder = Path(cfg.OUTPUT_DIR)
    first = folder / FIRST_HALF
    labels = first.with_name(f"{PSEUDO_LABELS}.json")
    cfg = _checked(cfg, labels)
    parts, test_sets = build_train_dataset(cfg).parts, build_test_datasets(cfg)
    if not labels.exists():
        known, options = images_of([*parts, *test_sets]), build_image_options(cfg)
        files = list_unlabeled([cfg.DATASETS.UNLABELED], known, options, exclude=folder)
        _write_config(cfg, first)
        half = _half(cfg, first)
        run_training(half, resume, hooks)
        _write_pseudo_labels(half, files, known, labels)
    _write_config(cfg, first)  # a resumed run may have other keys
    half = _second_half(cfg, first, labels, tuple(len(part) for part in parts))
    metrics = run_training(half, resume and newest_checkpoint(folder) is not None, hooks)
    _log_gain(first, metrics)
    return metrics


def _checked(cfg: CfgNode, labels: Path) -> CfgNode:
    """Return the config with an absolute path of images without labels.

    Raises ConfigError if the output folder contains another run.
    """
    cfg, source, folder = cfg.clone(), cfg.DATASETS.UNLABELED, Path(cfg.OUTPUT_DIR)
    cfg.defrost()
    cfg.DATASETS.UNLABELED = source if is_url(source) else os.path.abspath(expand_path(source))
    for path in (labels.absolute(), cfg.DATASETS.UNLABELED):
        expand_path(str(path))  # raises now what would end the second half
    stored = stored_config(folder)
    if any(entry["name"] == PSEUDO_LABELS for entry in cfg.DATASETS.CATALOG):
        raise ConfigError(
            f"DATASETS.CATALOG: {PSEUDO_LABELS} is the name of the detections that a run with "
            f"DATASETS.UNLABELED trains on. Start from unlabeled/config.yaml of that run, "
            "with its model (`detlite train --weights`)"
        )
    if files_of_run(folder) and stored.parent == folder:
        raise ConfigError(
            f"OUTPUT_DIR {folder}: its run is one without DATASETS.UNLABELED, which cannot be "
            "added. Choose another OUTPUT_DIR, and start from its model (`detlite train --weights`)"
        )
    if labels.exists() and load_config(stored).DATASETS.UNLABELED != cfg.DATASETS.UNLABELED:
        raise ConfigError(
            f"{labels}: contains detections in other images than DATASETS.UNLABELED. Choose "
            "another OUTPUT_DIR"
        )
    return cfg


def _write_config(cfg: CfgNode, first: Path) -> None:
    """Write the config of the whole run next to the folder of its first half."""
    if is_main():
        make_folder(first)
        write_config(cfg, first.parent)
    barrier()


def _half(cfg: CfgNode, folder: Path) -> CfgNode:
    """Return the config of a run in `folder` of half the duration, without DATASETS.UNLABELED."""
    half = cfg.clone()
    half.defrost()
    half.OUTPUT_DIR, half.DATASETS.UNLABELED, solver = str(folder), "", half.SOLVER
    if solver.MAX_ITER is not None:
        solver.MAX_ITER = math.ceil(solver.MAX_ITER / 2)
    for key in ("MAX_MINUTES", "MAX_EPOCHS"):
        if solver[key] is not None:
            solver[key] /= 2
    solver.STEPS = tuple(step if step < 1 else math.ceil(step / 2) for step in solver.STEPS)
    return half


def _write_pseudo_labels(
    cfg: CfgNode, files: Sequence[Path], known: Sequence[ImageSource], output: Path
) -> None:
    """Write the detections of a finished run in at most the number of images it was trained on.

    Every process detects in its share of the images.
    """
    start, weights = time.perf_counter(), _averaged_weights(Path(cfg.OUTPUT_DIR))
    count = min(_iterations(Path(cfg.OUTPUT_DIR)) * cfg.SOLVER.IMS_PER_BATCH, len(files))
    chosen = drop_duplicates(random.Random(cfg.SEED).sample(files, count), known)
    opts = ["MODEL.DEVICE", cfg.MODEL.DEVICE, "IMPORTS", cfg.IMPORTS]
    limit = cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG
    predictor, found = detect(weights, chosen[rank() :: world_size()], opts, limit)
    if (parts := gather_objects(found)) is None:
        return
    order = {file: number for number, file in enumerate(chosen)}
    found = sorted(chain(*parts), key=lambda image: order[image[0]])
    root = os.path.commonpath([file.absolute().parent for file in chosen]) if chosen else ""
    names = (Path(os.path.relpath(file.absolute(), root)).as_posix() for file, _ in found)
    content = coco_labels(zip(names, (entry for _, entry in found), strict=True), predictor)
    content["info"] = {
        "description": "detections of a model, not labels; ignore: their score is uncertain"
    }
    detection = {"images": root, "seconds": time.perf_counter() - start}
    for file, value in ((output.with_name(_DETECTION), detection), (output, content)):
        with atomic_open(file) as stream:
            json.dump(value, stream)
    rows = content["annotations"]
    uncertain = sum(row["ignore"] for row in rows)
    logger.info("%s: %d objects and %d uncertain ones in %d images without labels (score %.2f)",
                output, len(rows) - uncertain, uncertain, len(found),
                predictor.score_thresh)  # fmt: skip


def _second_half(cfg: CfgNode, first: Path, labels: Path, sizes: tuple[int, ...]) -> CfgNode:
    """Return the config of the second half, given the `sizes` of the labeled datasets."""
    half = _half(cfg, Path(cfg.OUTPUT_DIR))
    detection = read_json(labels.with_name(_DETECTION))
    half.MODEL.WEIGHT, half.MODEL.REINIT_HEADS = _averaged_weights(first), False
    solver, datasets = half.SOLVER, half.DATASETS
    if solver.MAX_MINUTES is not None:
        left = solver.MAX_MINUTES - detection["seconds"] / 60
        solver.MAX_MINUTES = max(left, solver.MAX_MINUTES / 2)
    elif solver.MAX_EPOCHS is not None:  # of the labels, as in the first half
        epochs = load_config(first / CONFIG_FILE).SOLVER.MAX_EPOCHS or solver.MAX_EPOCHS
        iterations = _iterations(first) * solver.MAX_EPOCHS / epochs  # more, if it is extended
        solver.MAX_ITER, solver.MAX_EPOCHS = round(iterations), None
    catalog, names = datasets.CATALOG, datasets.TRAIN
    entry = {"name": PSEUDO_LABELS, "annotations": str(labels.absolute())}
    datasets.CATALOG = [*catalog, entry | {"images": detection["images"]}]
    datasets.TRAIN = (*names, PSEUDO_LABELS)
    try:
        build_dataset(half, PSEUDO_LABELS, train=True)
    except DataError as error:
        logger.warning("the rest of the run trains on the labels only. Train longer, or label more "
                       "images: %s", error)  # fmt: skip
        datasets.CATALOG, datasets.TRAIN = catalog, names
    else:
        shares = datasets.TRAIN_SHARES or sizes
        datasets.TRAIN_SHARES = (*shares, sum(shares))
    return half


def _log_gain(first: Path, metrics: Mapping[str, Metrics]) -> None:
    """Compare the metrics of the whole run with those of its first half."""
    file = first / "evaluation.json"
    if not metrics or not file.exists():
        return
    before = read_json(file)
    for name, kinds in metrics.items():
        for kind, values in kinds.items():
            old, new = before.get(name, before).get(kind, {}).get("AP"), values.get("AP")
            if old is not None and new is not None:
                level = logging.WARNING if new < old else logging.INFO
                logger.log(level, "%s: the AP of %s is %.1f, after the first half it was %.1f (%s)",
                           name, kind, 100 * new, 100 * old, first)  # fmt: skip


def _iterations(folder: Path) -> int:
    """Return the number of iterations of a finished run."""
    return int(read_checkpoint(folder / FINAL_CHECKPOINT).training["iteration"])


def _averaged_weights(folder: Path) -> str:
    """Return the final checkpoint of a run, with averaged weights if there are any."""
    files = [folder / name for name in (AVERAGE_CHECKPOINT, FINAL_CHECKPOINT)]
    return str(next(file for file in files if file.exists()).absolute())
