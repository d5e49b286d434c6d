"""Evaluate a detector on whole datasets: metrics, and for TEST.LOSS the training losses."""

import json
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.config import ConfigError, changed
from detlite.data import CocoDataset, DataError, build_dataset, build_test_loader
from detlite.data.datasets.coco import Target
from detlite.data.transforms.resize import size_of
from detlite.distributed import all_gather_objects, broadcast_buffers, is_main
from detlite.evaluation.detection_results import to_coco_results
from detlite.evaluation.evaluators import build_evaluators
from detlite.evaluation.metrics import (
    Metrics,
    MetricValue,
    check_expected,
    format_losses,
    format_table,
)
from detlite.evaluation.results import Results, gather_results, write_results
from detlite.files.atomic_write import atomic_open
from detlite.inference.build import build_detector
from detlite.inference.options import build_options
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.detector import Detector
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import autocast, resolve_dtype
from detlite.structures.categories import CategoryMatch
from detlite.structures.instances import Detections
from detlite.structures.keypoints import with_sides

from .rng import preserve_rng

logger = logging.getLogger(__name__)

EMA_SUFFIX = " average"  # follows a dataset's name in the metrics of the averaged weights
LOSS = "loss"  # key of TEST.LOSS among the metrics of a dataset
_REPORT_SECONDS = 30
_EXPECTED_SIGMAS = 4.0  # maskrcnn-benchmark's tolerance of TEST.EXPECTED_RESULTS
_CONVERTING_MEANWHILE = ("cuda",)  # on a CPU, the thread would compete with the model


def evaluate(
    cfg: CfgNode, model: DetectionModel, datasets: Sequence[CocoDataset], output_dir: Path
) -> dict[str, Metrics]:
    """Return the metrics of a model on each dataset, by name; every process calls it.

    They are complete on rank 0, and empty in other processes.
    """
    # Each process has its own batch statistics, and checkpoints contain rank 0's.
    broadcast_buffers(model)
    metrics = {one.name: evaluate_dataset(cfg, model, one, output_dir) for one in datasets}
    return metrics if is_main() else {}


def write_metrics(metrics: dict[str, Metrics], output_dir: Path) -> None:
    """Write evaluation.json on rank 0, unless there are no datasets.

    It contains `{"bbox": {"AP": ...}, "segm": {...}}` for one dataset, and `{name: {"bbox": ...}}`
    for several.
    """
    if metrics:
        content = metrics if len(metrics) > 1 else next(iter(metrics.values()))
        with atomic_open(output_dir / "evaluation.json") as file:
            file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def evaluate_dataset(
    cfg: CfgNode, model: DetectionModel, dataset: CocoDataset, output_dir: Path
) -> Metrics:
    """Evaluate a model on one dataset, write `results_<name>.json`, and log the table.

    Returns:
        On rank 0 the metrics of all evaluators, `{"bbox": {"AP": 0.4, ...}, "segm": {...}}`, as
        fractions; a kind of a second evaluator is prefixed with its name: "lvis bbox". With
        TEST.LOSS also `{"loss": {"total": ...}}`. Empty in other processes.
    """
    check_evaluation(cfg, model, dataset)
    was_training, static_shapes = model.training, model.static_shapes
    model.static_shapes = False  # detect without computing padding
    options = replace(build_options(cfg), score_thresh=None)
    if not options.optimize:
        model.use_memory_format()
    names = with_sides(dataset.keypoint_names, cfg.DATASETS.KEYPOINT_FLIP_PAIRS)
    detector, dtype = build_detector(model.eval(), options, names, cfg.MODEL.COMPILE)
    results = gather_results(run_inference(cfg, detector, dtype, dataset))
    model.train(was_training)
    model.static_shapes = static_shapes
    losses: dict[str, float | None] = {}
    if cfg.TEST.LOSS:
        losses = validation_loss(cfg, model, dataset.name)
    if results is None:
        return {}
    write_results(results, output_dir / f"results_{dataset.name}.json")
    metrics = measure(cfg, dataset, results)
    logger.info("%s:\n%s", dataset.name, format_table(metrics))
    if losses:
        metrics[LOSS] = losses
        logger.info("%s: loss %s", dataset.name, format_losses(losses))
    check_expected(metrics, cfg.TEST.EXPECTED_RESULTS, _EXPECTED_SIGMAS)
    return metrics


def measure(cfg: CfgNode, dataset: CocoDataset, results: Results) -> Metrics:
    """Compute the metrics of all evaluators of a dataset, by kind, see `evaluate_dataset`."""
    metrics: Metrics = {}
    for name, evaluator in build_evaluators(cfg, dataset).items():
        for kind, values in evaluator.evaluate(cfg, dataset, results).items():
            metrics[f"{name} {kind}" if kind in metrics else kind] = values
    return metrics


def check_evaluation(cfg: CfgNode, detector: Detector, dataset: CocoDataset) -> None:
    """Check, before anything is computed, that a detector can be evaluated on a dataset.

    Raises:
        ConfigError, DataError: an evaluator cannot be used (`Evaluator.check`), the dataset's name
            cannot be part of a file name, or the detector has other categories.
    """
    if any(character in dataset.name for character in "/\\\0"):
        raise ConfigError(
            f"DATASETS.CATALOG: the name {dataset.name!r} contains a slash, but OUTPUT_DIR/"
            "results_<name>.json must be a file name: choose a name without slashes"
        )
    matched = match_categories(detector, dataset)
    if cfg.TEST.LOSS and list(matched) != list(dataset.categories):
        raise ConfigError(
            f"TEST.LOSS needs the categories of the model, in its order: {dataset.annotation_file} "
            "has others. Set it to False"
        )
    evaluators = build_evaluators(cfg, dataset)
    if evaluators and not dataset.has_objects:
        raise DataError(
            f"{dataset.annotation_file}: has no annotations, so nothing can be evaluated: name "
            "another test set (`detlite test --data`, `detlite init --val` or DATASETS.TEST), or "
            "see detections with `detlite predict`"
        )
    for evaluator in evaluators.values():
        evaluator.check(cfg, dataset)


def match_categories(
    detector: Detector, dataset: CocoDataset, log: bool = False
) -> Sequence[dict[str, Any] | None]:
    """Return the category of a dataset for each label of a detector; None if it lacks it.

    A detector without categories has the dataset's. With `log`, what does not match is logged.

    Raises:
        DataError: no category matches, or without names the numbers of categories differ.
    """
    rows = dataset.categories
    if not detector.categories:
        return rows
    labels = "the dataset", "the model, whose detections of them are not measured"
    match = CategoryMatch(rows, detector.categories, labels)
    if not match.named and match.counts[0] != match.counts[1]:
        raise DataError(
            f"{dataset.annotation_file}: has {match.counts[0]} categories, but the model has "
            f"{match.counts[1]}, whose names are unknown: list its categories in its order"
        )
    if all(number is None for number in match.numbers):
        raise DataError(
            f"{dataset.annotation_file}: its categories differ from those that the model was "
            f"trained on: {match}"
        )
    if match.differ and log:
        logger.warning("%s: %s", dataset.name, match)
    return [None if number is None else rows[number] for number in match.numbers]


def run_inference(
    cfg: CfgNode, detector: Detector, dtype: str, dataset: CocoDataset
) -> list[Results]:
    """Detect objects in this process's share of a dataset, under `autocast` with `dtype`.

    A thread pastes masks and converts the detections of a batch while a GPU computes the next one.
    """
    results: list[Results] = []
    categories = match_categories(detector, dataset, log=True)
    matched = torch.tensor([k for k, row in enumerate(categories, start=1) if row])
    settings = [row or {} for row in categories], detector.convention, detector.mask_threshold

    def convert(
        images: Sequence[Tensor], targets: Sequence[Target], batch: Sequence[Detections]
    ) -> None:
        for image, target, detections in zip(images, targets, batch, strict=True):
            if None in categories:
                known = torch.isin(detections.labels, matched.to(detections.labels))
                detections = detections[known]
            image_id, size = target["image_id"], target["size"]
            results.append(to_coco_results(detections, image_id, size_of(image), size, *settings))

    start = reported = time.perf_counter()
    pending: Future[None] | None = None
    with ThreadPoolExecutor(1) as thread:
        for images, targets in build_test_loader(cfg, dataset):
            proposals = None
            if detector.takes_proposals:
                proposals = [target["proposals"] for target in targets]
            with autocast(dtype, detector.device):
                batch = detector.detect(images, proposals)
            if pending:
                pending.result()
            if detector.device.type in _CONVERTING_MEANWHILE:
                pending = thread.submit(convert, images, targets, batch)
            else:
                convert(images, targets, batch)
            now, done = time.perf_counter(), len(results)
            if now - reported > _REPORT_SECONDS:
                reported, rate = now, done / (now - start)
                logger.info("%s: %d images, %.2f images/s", dataset.name, done, rate)
        if pending:
            pending.result()
    seconds, done = time.perf_counter() - start, len(results)
    logger.info(
        "%s: %d images in %.1f s, %.2f images/s per process, in %s",
        dataset.name, done, seconds, done / seconds, resolve_dtype(cfg.DTYPE, detector.device),
    )  # fmt: skip
    return results


def build_loss_dataset(cfg: CfgNode, name: str) -> CocoDataset:
    """Build a dataset of DATASETS.TEST like a training set: with masks, annotated images only."""
    return build_dataset(_train_on_test_sets(cfg), name, train=True)


def validation_loss(cfg: CfgNode, model: DetectionModel, name: str) -> dict[str, float | None]:
    """Compute the losses on a dataset of DATASETS.TEST; every process calls it for its part.

    The result is a mean over images, each in a separate batch. Many losses are means over the boxes
    of a batch, so the result would otherwise depend on the number of processes and on
    TEST.IMS_PER_BATCH. Images are resized as in evaluation and not augmented. Batch norm uses its
    running statistics. The seed of each image determines which boxes are sampled, and the random
    generators and the mode of the model are restored afterwards.

    Returns:
        `total` and each loss without the prefix "loss_", in every process; None if not finite.
    """
    optimize_for_training(model)  # rounds like the training losses
    dataset = build_loss_dataset(cfg, name)
    rows: list[dict[str, float]] = []
    was_training = model.training
    with torch.no_grad(), preserve_rng(model.device):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        for images, targets in build_test_loader(_train_on_test_sets(cfg), dataset):
            for image, target in zip(images, targets, strict=True):
                torch.manual_seed((cfg.SEED + target["image_id"]) % 2**63)
                with autocast(cfg.DTYPE, model.device):
                    losses = model([image], [target])
                values = torch.stack([loss.float() for loss in losses.values()]).tolist()
                rows.append(dict(zip(losses, values, strict=True)))
    model.train(was_training)
    all_rows = [row for part in all_gather_objects(rows) for row in part]
    # fsum is exact, so neither the order nor the number of processes matters.
    means = {
        key.removeprefix("loss_"): math.fsum(row[key] for row in all_rows) / len(all_rows)
        for key in all_rows[0]
    }
    result = {"total": math.fsum(means.values()), **means}
    return {
        key: MetricValue(value, lower_is_better=True) if math.isfinite(value) else None
        for key, value in result.items()
    }


def _train_on_test_sets(cfg: CfgNode) -> CfgNode:
    """Return the config with the test sets as training sets, without test-time augmentation."""
    datasets = cfg.DATASETS
    values = {
        "DATASETS.TRAIN": datasets.TEST,
        "DATASETS.PROPOSAL_FILES_TRAIN": datasets.PROPOSAL_FILES_TEST,
        "DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TRAIN": datasets.PRECOMPUTED_PROPOSAL_TOPK_TEST,
        # Both load images without resizing.
        "TEST.BBOX_AUG.ENABLED": False,
        "TEST.TILE": 0,
    }
    return changed(cfg, values)
