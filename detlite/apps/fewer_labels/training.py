"""Train with images without labels: a run on the labels, its detections, and a run on both.

    OUTPUT_DIR/unlabeled/config.yaml         the config of the whole run, from which it resumes
    OUTPUT_DIR/unlabeled/labels_only/        the first half, a run on the labels
    OUTPUT_DIR/unlabeled/pseudo_labels.json  what its model detects, as a COCO file
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
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from detlite.checkpoint.files import read_checkpoint
from detlite.config import expand_path
from detlite.data import build_test_datasets, build_train_dataset
from detlite.data.images.pixels import build_image_options
from detlite.distributed import barrier, is_main
from detlite.engine.hooks import Hook
from detlite.engine.run import UNLABELED_RUNS, run_training
from detlite.engine.run_files import (
    AVERAGE_CHECKPOINT,
    FINAL_CHECKPOINT,
    UNLABELED_FOLDER,
    write_config,
)
from detlite.evaluation.metrics import Metrics
from detlite.files.atomic_write import atomic_open, make_folder
from detlite.files.download import is_url
from detlite.files.json_files import read_json

from .detection_labels import coco_labels, detect
from .unlabeled_images import drop_duplicates, images_of, list_unlabeled

logger = logging.getLogger(__name__)

PSEUDO_LABELS = "pseudo_labels"  # name of the second dataset


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
        DataError: DATASETS.UNLABELED contains no image that can be used.
    """
    parts = build_train_dataset(cfg).parts
    known = images_of([*parts, *build_test_datasets(cfg)])
    source = cfg.DATASETS.UNLABELED
    source = source if is_url(source) else str(expand_path(source))
    files = list_unlabeled([source], known, build_image_options(cfg))
    own = Path(cfg.OUTPUT_DIR) / UNLABELED_FOLDER
    first, labels = own / "labels_only", own / f"{PSEUDO_LABELS}.json"
    if is_main():
        make_folder(own)
        make_folder(first)
        write_config(cfg, own)
    barrier()
    if not labels.exists():
        half = _half(cfg, first)
        run_training(half, resume, hooks)
        if is_main():
            _write_pseudo_labels(half, files, known, labels)
        barrier()
    half = _second_half(cfg, first, labels, tuple(len(part) for part in parts))
    return run_training(half, resume, hooks)


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


def _second_half(cfg: CfgNode, first: Path, labels: Path, sizes: tuple[int, ...]) -> CfgNode:
    """Return the config of the second half, given the `sizes` of the labeled datasets."""
    half, info = _half(cfg, Path(cfg.OUTPUT_DIR)), read_json(labels)["info"]
    half.MODEL.WEIGHT, half.MODEL.REINIT_HEADS = _averaged_weights(first), False
    solver, datasets = half.SOLVER, half.DATASETS
    if solver.MAX_MINUTES is None:
        solver.MAX_ITER, solver.MAX_EPOCHS = info["iterations"], None
    else:
        left = solver.MAX_MINUTES - info["seconds"] / 60
        solver.MAX_MINUTES = max(left, solver.MAX_MINUTES / 2)
    if info["objects"]:
        shares = datasets.TRAIN_SHARES or sizes
        datasets.TRAIN_SHARES = (*shares, sum(shares))
        datasets.TRAIN = (*datasets.TRAIN, PSEUDO_LABELS)
        file = str(labels.absolute())
        entry = {"name": PSEUDO_LABELS, "annotations": file, "images": info["folder"]}
        datasets.CATALOG = [*datasets.CATALOG, entry]
    else:
        logger.warning("%s: no detection has a score of %.2f, so the rest of the run trains on the "
                       "labels only. Train longer, or label more images", labels,
                       info["min_score"])  # fmt: skip
    return half


def _write_pseudo_labels(
    cfg: CfgNode, files: Sequence[Path], known: Sequence[Path], output: Path
) -> None:
    """Write the detections of a finished run in at most the number of images it was trained on."""
    start, folder = time.perf_counter(), Path(cfg.OUTPUT_DIR)
    iterations = read_checkpoint(folder / FINAL_CHECKPOINT).training["iteration"]
    count = min(iterations * cfg.SOLVER.IMS_PER_BATCH, len(files))
    chosen = drop_duplicates(random.Random(cfg.SEED).sample(files, count), known)
    opts = ["MODEL.DEVICE", cfg.MODEL.DEVICE, "IMPORTS", cfg.IMPORTS]
    predictor, found = detect(_averaged_weights(folder), chosen, opts)
    root = os.path.commonpath([file.absolute().parent for file in chosen]) if chosen else ""
    names = (Path(os.path.relpath(file.absolute(), root)).as_posix() for file, _ in found)
    content = coco_labels(zip(names, (entry for _, entry in found), strict=True), predictor)
    uncertain = sum(row["ignore"] for row in content["annotations"])
    objects = len(content["annotations"]) - uncertain
    content["info"] = {
        "description": "detections of a model, not labels; ignore: their score is uncertain",
        "iterations": iterations, "min_score": predictor.score_thresh, "objects": objects,
        "folder": root, "seconds": time.perf_counter() - start,
    }  # fmt: skip
    with atomic_open(output) as stream:
        json.dump(content, stream)
    logger.info("%s: %d objects and %d uncertain ones in %d images without labels (score %.2f)",
                output, objects, uncertain, len(found), predictor.score_thresh)  # fmt: skip


def _averaged_weights(folder: Path) -> str:
    """Return the final checkpoint of a run, with averaged weights if there are any."""
    files = [folder / name for name in (AVERAGE_CHECKPOINT, FINAL_CHECKPOINT)]
    return str(next(file for file in files if file.exists()).absolute())
