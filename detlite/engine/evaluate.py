"""Evaluation: inference over whole data sets, COCO results, and what evaluators make of them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from yacs.config import CfgNode

from detlite.atomic_write import atomic_open
from detlite.config import ConfigError
from detlite.data import CocoDataset, DataError, build_test_loader
from detlite.distributed import broadcast_buffers, is_main
from detlite.evaluation.evaluators import build_evaluators
from detlite.evaluation.gather import Collector, gather_results
from detlite.evaluation.metrics import check_expected, format_losses, format_table
from detlite.evaluation.results import Results, to_coco_results, write_results
from detlite.inference.optimize import build_inference
from detlite.inference.tiling import build_picture_detector
from detlite.modeling.detector import Detector
from detlite.modeling.precision import autocast, resolve_dtype

from .validation_loss import KIND as LOSS
from .validation_loss import validation_loss

logger = logging.getLogger(__name__)


def evaluate(
    cfg: CfgNode, model: Detector, datasets: Sequence[CocoDataset], output_dir: Path
) -> dict[str, dict[str, Any]]:
    """Evaluates `model` on each data set and writes evaluation.json. Every process calls this.

    evaluation.json holds `{"bbox": {"AP": ...}, "segm": {...}}` for one data set, and
    `{name: {"bbox": ...}}` for several.

    Returns:
        The metrics of each data set by its name on rank 0; nothing on the others.
    """
    # Processes keep batch statistics of their own; a checkpoint has those of rank 0.
    broadcast_buffers(model)
    metrics = {
        dataset.name: evaluate_dataset(cfg, model, dataset, output_dir) for dataset in datasets
    }
    if not is_main():
        return {}
    if metrics:
        content = metrics if len(metrics) > 1 else next(iter(metrics.values()))
        with atomic_open(output_dir / "evaluation.json") as file:
            file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
    return metrics


def evaluate_dataset(
    cfg: CfgNode, model: Detector, dataset: CocoDataset, output_dir: Path
) -> dict[str, Any]:
    """Evaluates `model` on one data set; writes `results_<name>.json` and logs the table.

    Returns:
        What all evaluators of the data set return, on rank 0: `{"bbox": {"AP": 0..1, ...}, "segm":
        {...}}`; nothing on the others. Where two evaluators measure the same, the name of the
        second goes before: "lvis bbox". With TEST.LOSS also `{"loss": {"total": ...}}`.

    Raises:
        ConfigError, DataError: see `check_evaluation`.
        OSError: the results cannot be written; it names the file.
    """
    check_evaluation(cfg, model, dataset)
    results = gather_results(run_inference(cfg, model, dataset))
    losses = validation_loss(cfg, model, dataset.name) if cfg.TEST.LOSS else {}
    if results is None:
        return {}
    write_results(results, output_dir / f"results_{dataset.name}.json")
    metrics: dict[str, Any] = {}
    for name, evaluator in build_evaluators(cfg, dataset).items():
        for kind, row in evaluator.evaluate(cfg, dataset, results).items():
            metrics[f"{name} {kind}" if kind in metrics else kind] = row
    logger.info("%s:\n%s", dataset.name, format_table(metrics))
    if losses:
        metrics[LOSS] = losses
        logger.info("%s: loss %s", dataset.name, format_losses(losses))
    check_expected(metrics, cfg.TEST.EXPECTED_RESULTS, cfg.TEST.EXPECTED_RESULTS_SIGMA_TOL)
    return metrics


def check_evaluation(cfg: CfgNode, model: Detector, dataset: CocoDataset) -> None:
    """Checks, before anything is computed, that `model` can be measured on a data set.

    Raises:
        ConfigError: an evaluator of the data set cannot be used, see their `check`; or its name
            cannot be part of a file's.
        DataError: the categories of the model are not those of the data set, or its ground truth
            lacks what an evaluator needs.
    """
    if any(character in dataset.name for character in "/\\\0"):
        raise ConfigError(
            f"DATASETS.CATALOG: the name {dataset.name!r} cannot be part of a file's name, and "
            "results_<name>.json is written to OUTPUT_DIR: leave slashes out"
        )
    ours, theirs = _named(model.categories), _named(dataset.categories)
    if ours and ours != theirs:
        raise DataError(
            f"{dataset.annotation_file}: its categories ({shorten(theirs, 150)}) are not those "
            f"that the model was trained on ({shorten(ours, 150)})"
        )
    evaluators = build_evaluators(cfg, dataset)
    if evaluators and not dataset.has_objects:
        raise DataError(
            f"{dataset.annotation_file}: has no annotations of its pictures, so nothing can be "
            "measured: take it out of DATASETS.TEST, and look at its pictures by `detlite predict`"
        )
    for evaluator in evaluators.values():
        evaluator.check(cfg, dataset)


def run_inference(cfg: CfgNode, model: Detector, dataset: CocoDataset) -> Results:
    """The results of this process's share of a data set: each image is one process's."""
    loader = build_test_loader(cfg, dataset)
    was_training = model.training
    fast, dtype = build_inference(cfg, model.eval())
    detector = build_picture_detector(cfg, fast, dataset.keypoint_names) or fast
    collector = Collector()
    done, start = 0, time.perf_counter()
    reported = start
    for images, targets in loader:
        given = [target["proposals"] for target in targets] if model.takes_proposals else None
        with autocast(dtype, model.device):
            batch = detector.detect(images, given)
        for image, target, detections in zip(images, targets, batch, strict=True):
            found = to_coco_results(
                detections,
                target["image_id"],
                (image.shape[-2], image.shape[-1]),
                target["size"],
                dataset.categories,
                model.convention,
                model.mask_threshold,
            )
            collector.add(found)
        done += len(images)
        now = time.perf_counter()
        if now - reported > 30:  # seconds
            reported = now
            logger.info("%s: %d images, %.2f images/s", dataset.name, done, done / (now - start))
    seconds = time.perf_counter() - start
    logger.info(
        "%s: %d images in %.1f s, %.2f images/s in each process, in %s",
        dataset.name, done, seconds, done / seconds, resolve_dtype(cfg.DTYPE, model.device),
    )  # fmt: skip
    model.train(was_training)
    return collector.collected()


def _named(categories: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{category['id']} {category['name']}" for category in categories)
