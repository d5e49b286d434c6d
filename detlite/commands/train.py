"""Trains the model that a config file describes, and evaluates it.

    detlite train --config configs/demo_shapes.yaml SOLVER.BASE_LR 0.01
    torchrun --nproc-per-node 2 -m detlite train --config configs/demo_shapes.yaml

OUTPUT_DIR then holds config.yaml, log.txt, metrics.jsonl, TensorBoard's events, checkpoints,
evaluation.json, results_<data set>.json, curves.png and detections.png.

A run that torchrun starts anew (`--max-restarts`) goes on from its last checkpoint.

SIGTERM and SIGHUP, by which a scheduler takes the machine back, let the step end and save it; a
second one ends at once.

Exit status: 0; 2 for what the user can mend; 75 when such a signal ended the run, which --resume
goes on with; 130 after Ctrl-C. Under torchrun these are the statuses of the processes, of which
its report tells.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from ..config import ConfigError, load_config
from ..data import (
    CocoDataset,
    DataError,
    LoaderProcessError,
    build_dataset,
    build_train_dataset,
    check_num_classes,
    naming_dead_loaders,
)
from ..distributed import barrier, is_main, process_group, rank, restarts
from ..engine.checkpoint import CheckpointError
from ..engine.freezing import with_norms_by_batch
from ..engine.metrics import METRICS_FILE, NonFiniteLossError, setup_logging
from ..engine.signals import StoppedError, StopSignals
from ..engine.state import seed_all
from ..engine.train import check_output_dir, train
from ..engine.weights import load_weights, read_weights
from ..inference.predictor import Predictor, build_predictor
from ..modeling import build_model
from ..visualization import contact_sheet, draw_detections, plot_metrics

_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
# OSError: such as a disk that is full while results are written.
_MENDABLE = (
    ConfigError, DataError, CheckpointError, NonFiniteLossError, LoaderProcessError, OSError,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser("detlite train", description=__doc__.splitlines()[0])
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in OUTPUT_DIR, if there is one"
    )
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    try:
        cfg = load_config(args.config, args.opts)
        with (
            StopSignals() as stop,
            stop.ending_at_once(),
            naming_dead_loaders(),
            process_group(cfg.MODEL.DEVICE),
        ):
            run(cfg, args.resume or restarts() > 0)
    except _MENDABLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StoppedError as stopped:
        print(stopped, file=sys.stderr)
        return _STOPPED
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


def run(cfg: CfgNode, resume: bool) -> None:
    """Trains, evaluates and draws, into OUTPUT_DIR."""
    output_dir = Path(cfg.OUTPUT_DIR)
    check_output_dir(output_dir, resume)
    barrier()  # before rank 0 writes what the others look for
    setup_logging(output_dir)
    cfg, weights = read_weights(cfg)  # which may be absent: ask first
    cfg = with_norms_by_batch(cfg)
    seed_all(cfg.SEED + rank(), cfg.SOLVER.DETERMINISTIC)
    train_set = build_train_dataset(cfg)
    test_sets = [build_dataset(cfg, name, train=False) for name in cfg.DATASETS.TEST]
    for test_set in test_sets:
        check_num_classes(cfg, test_set)
    model = build_model(cfg)
    model.categories = train_set.categories
    if weights:
        load_weights(model, weights, cfg.MODEL.REINIT_HEADS)
    del weights  # its memory
    model.categories = train_set.categories  # not those of the weights
    if is_main():
        (output_dir / "config.yaml").write_text(cfg.dump())
    train(cfg, model, train_set, test_sets, resume)
    if is_main():
        plot_metrics(output_dir / METRICS_FILE, output_dir / "curves.png")
        if test_sets:
            draw_sheet(build_predictor(cfg, model), test_sets[0], output_dir / "detections.png")


def draw_sheet(predictor: Predictor, dataset: CocoDataset, path: Path, most: int = 12) -> None:
    """Draws the detections on images from all over the data set, on one sheet."""
    step = max(len(dataset) // most, 1)
    samples = [dataset[index] for index in range(0, len(dataset), step)][:most]
    drawn = [
        draw_detections(image, predictor(image, target.get("proposals")), dataset.categories)
        for image, target in samples
    ]
    contact_sheet(drawn).save(path)
