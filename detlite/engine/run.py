"""Whole runs by a config: everything built, then trained or evaluated, into OUTPUT_DIR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.apps.drawing import contact_sheet, draw_detections, plot_metrics
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import Checkpoint
from detlite.conversion.checkpoint.loading import load_weights, read_weights, with_convention
from detlite.data import (
    CocoDataset,
    build_dataset,
    build_train_dataset,
    check_num_classes,
    warn_of_known,
)
from detlite.distributed import is_main, rank
from detlite.inference.predictor import Predictor, build_predictor
from detlite.modeling import build_model

from .evaluate import evaluate
from .hooks.freezing import with_norms_by_batch
from .hooks.metrics import METRICS_FILE
from .resume import newest_checkpoint
from .rng import seed_all
from .trainer import train

Metrics = dict[str, dict[str, Any]]


def run_training(cfg: CfgNode, resume: bool = False) -> Metrics:
    """Trains, evaluates and draws; every process calls it.

    Returns:
        What `train` returns.

    Raises:
        ConfigError, DataError, CheckpointError, ...: whatever parts of the run raise.
    """
    output_dir = Path(cfg.OUTPUT_DIR)
    before = newest_checkpoint(output_dir) if resume else None
    if before:  # it has all weights, and those that the run started from may be gone
        cfg, weights = with_convention(cfg, before), None
    else:
        cfg, weights = read_weights(cfg)  # which may be absent: ask first
    cfg = with_norms_by_batch(cfg, before if cfg.MODEL.BACKBONE.FREEZE_NORM_BELOW > 0 else None)
    del before
    seed_all(cfg.SEED + rank(), cfg.SOLVER.DETERMINISTIC)
    train_set = build_train_dataset(cfg)
    test_sets = _test_sets(cfg)
    warn_of_known(train_set, test_sets)
    model = build_model(cfg)
    model.categories = train_set.categories
    if weights:
        load_weights(model, weights, cfg.MODEL.REINIT_HEADS)
    del weights  # its memory
    model.categories = train_set.categories  # not those of the weights
    if is_main():
        (output_dir / "config.yaml").write_text(cfg.dump())
    metrics = train(cfg, model, train_set, test_sets, resume)
    if is_main():
        plot_metrics(output_dir / METRICS_FILE, output_dir / "curves.png")
        if test_sets:
            _draw_sheet(build_predictor(cfg, model), test_sets[0], output_dir / "detections.png")
    return metrics


def run_evaluation(cfg: CfgNode, weights: Checkpoint | None = None) -> Metrics:
    """Evaluates; every process calls it.

    Args:
        cfg: names the checkpoint by MODEL.WEIGHT,
        weights: unless it was read already, for its config.

    Returns:
        What `evaluate` returns.

    Raises:
        ConfigError: nothing to evaluate, or nothing to evaluate on; and whatever the parts raise.
    """
    if not cfg.DATASETS.TEST:
        raise ConfigError("DATASETS.TEST is empty: name at least one entry of DATASETS.CATALOG")
    output_dir = Path(cfg.OUTPUT_DIR)
    if weights is None:
        cfg, weights = read_weights(cfg)
    if weights is None:
        raise ConfigError("MODEL.WEIGHT is empty: name the checkpoint to evaluate")
    if is_main() and not (output_dir / METRICS_FILE).exists():  # a training keeps its own
        (output_dir / "config.yaml").write_text(cfg.dump())
    datasets = _test_sets(cfg)
    model = build_model(cfg)
    load_weights(model, weights)
    del weights  # its memory
    return evaluate(cfg, model, datasets, output_dir)


def _test_sets(cfg: CfgNode) -> list[CocoDataset]:
    datasets = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
    for dataset in datasets:
        check_num_classes(cfg, dataset)
    return datasets


def _draw_sheet(predictor: Predictor, dataset: CocoDataset, path: Path, most: int = 12) -> None:
    """Draws the detections on images from all over the data set, on one sheet."""
    step = max(len(dataset) // most, 1)
    samples = [dataset[index] for index in range(0, len(dataset), step)][:most]
    drawn = [
        draw_detections(image, predictor(image, target.get("proposals")), dataset.categories)
        for image, target in samples
    ]
    contact_sheet(drawn).save(path)
