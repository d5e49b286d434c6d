"""Evaluates a checkpoint on the test sets of a config file.

    detlite test --config configs/demo_shapes.yaml MODEL.WEIGHT model_final.pth
    torchrun --nproc-per-node 2 -m detlite test --config ... MODEL.WEIGHT ...

Prints the COCO table and writes evaluation.json and results_<data set>.json to OUTPUT_DIR.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from ..config import ConfigError, load_config
from ..data import (
    DataError,
    LoaderProcessError,
    build_dataset,
    check_num_classes,
    naming_dead_loaders,
)
from ..distributed import process_group
from ..engine.checkpoint import CheckpointError
from ..engine.evaluate import evaluate
from ..engine.metrics import setup_logging
from ..engine.weights import load_weights, read_weights
from ..inference.memory import keep_freed_memory
from ..modeling import build_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own.

    Returns:
        The exit status: 0, or 2 for what the user can mend.
    """
    parser = argparse.ArgumentParser("detlite test", description=__doc__.splitlines()[0])
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    keep_freed_memory()
    try:
        cfg = load_config(args.config, args.opts)
        with process_group(cfg.MODEL.DEVICE), naming_dead_loaders():
            run(cfg)
    # OSError: such as a disk that is full while results are written.
    except (ConfigError, DataError, CheckpointError, LoaderProcessError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(cfg: CfgNode) -> None:
    """Evaluates into OUTPUT_DIR."""
    if not cfg.DATASETS.TEST:
        raise ConfigError("DATASETS.TEST is empty: name at least one entry of DATASETS.CATALOG")
    output_dir = Path(cfg.OUTPUT_DIR)
    setup_logging(output_dir)
    cfg, weights = read_weights(cfg)
    if weights is None:
        raise ConfigError("MODEL.WEIGHT is empty: name the checkpoint to evaluate")
    datasets = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
    for dataset in datasets:
        check_num_classes(cfg, dataset)
    model = build_model(cfg)
    load_weights(model, weights)
    del weights  # its memory
    evaluate(cfg, model, datasets, output_dir)
