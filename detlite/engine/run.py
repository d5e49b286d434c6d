"""Whole runs from a config: build everything, train or evaluate, write files to OUTPUT_DIR."""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from yacs.config import CfgNode

from detlite.checkpoint.files import Checkpoint
from detlite.checkpoint.loading import build_with_weights, load_weights, read_weights
from detlite.config import ConfigError
from detlite.data import (
    CocoDataset,
    build_test_datasets,
    build_train_dataset,
    log_findings,
)
from detlite.distributed import is_main, process_group, rank
from detlite.evaluation.metrics import Metrics
from detlite.files.atomic_write import open_to_append
from detlite.modeling import build_model
from detlite.modeling.build import torch_device
from detlite.modeling.detection_model import DetectionModel
from detlite.registry import Registry

from .environment import describe_environment
from .evaluate import evaluate, write_metrics
from .hooks.base import Hook, TrainingRun, build_hooks
from .rng import seed_all
from .run_config import complete_config
from .run_files import METRICS_FILE, run_lock, write_config
from .trainer import Trainer

logger = logging.getLogger(__name__)

# "run": draws the results of a run, from its config, model, test sets and last metrics.
DRAWINGS: Registry[
    Callable[[CfgNode, DetectionModel, Sequence[CocoDataset], dict[str, Metrics]], None]
] = Registry("drawing", on_demand={"run": "detlite.apps.report.run_drawings"})


def run_training(
    cfg: CfgNode, resume: bool = False, hooks: Sequence[Hook] = ()
) -> dict[str, Metrics]:
    """Train, evaluate and draw; every process calls it. See `Trainer` and `Trainer.train`."""
    cfg, weights = complete_config(cfg, resume)
    seed_all(cfg.SEED + rank(), cfg.SOLVER.DETERMINISTIC)
    train_set = build_train_dataset(cfg)
    test_sets = build_test_datasets(cfg)
    log_findings([*train_set.parts, *test_sets], train_set.parts)
    model = build_model(cfg)
    model.categories = train_set.categories
    if weights:
        load_weights(model, weights, cfg.MODEL.REINIT_HEADS)
    del weights  # free its memory
    model.categories = train_set.categories  # not the categories of the weights
    if is_main():
        write_config(cfg, Path(cfg.OUTPUT_DIR))
    metrics = Trainer(cfg, model, train_set, test_sets, hooks).train(resume)
    if is_main():
        DRAWINGS.get("run")(cfg, model, test_sets, metrics)
    return metrics


def run_evaluation(cfg: CfgNode, weights: Checkpoint | None = None) -> dict[str, Metrics]:
    """Evaluate `weights` or MODEL.WEIGHT on the test sets, see `evaluate.evaluate`."""
    if not cfg.DATASETS.TEST:
        raise ConfigError("DATASETS.TEST is empty: name at least one entry of DATASETS.CATALOG")
    output_dir = Path(cfg.OUTPUT_DIR)
    if weights is None:
        cfg, weights = read_weights(cfg)
    if weights is None:
        raise ConfigError("MODEL.WEIGHT is empty: name the checkpoint to evaluate")
    if is_main() and not (output_dir / METRICS_FILE).exists():  # keep the config of a training run
        write_config(cfg, output_dir)
    datasets = build_test_datasets(cfg)
    log_findings(datasets)
    model = build_with_weights(cfg, weights)
    run = TrainingRun()
    run.cfg, run.model, run.test_sets, run.output_dir = cfg, model, datasets, output_dir
    run.checkpoint, run.iteration = weights.path, int(weights.training.get("iteration", 0))
    run.hooks = build_hooks(cfg)
    del weights  # free its memory
    metrics = evaluate(cfg, model, datasets, output_dir)
    for hook in run.hooks:
        hook.trainer = run
        hook.after_evaluation(metrics)
    if is_main() and run.hooks:
        write_metrics(metrics, output_dir)
    return metrics


@contextmanager
def exclusive_run(output_dir: Path, device: str) -> Iterator[None]:
    """Be the only run that writes to a folder, as one of its processes, within a `with` block.

    The folder is locked, the processes are connected for MODEL.DEVICE `device`, and log messages
    are appended to log.txt, first a description of the environment.
    """
    with (
        process_group(device),
        run_lock(output_dir) if is_main() else nullcontext(),
        logging_to(output_dir),
    ):
        for line in describe_environment(torch_device(device)) if is_main() else ():
            logger.info("%s", line)
        yield


@contextmanager
def logging_to(output_dir: Path) -> Iterator[None]:
    """Append log messages and warnings to `output_dir`/log.txt within a `with` block.

    Handlers of the root logger receive the messages too; if it has none, as in a command, messages
    are printed. Processes other than rank 0 log only warnings, and not to the file.
    """
    root = logging.getLogger()
    level, showwarning = root.level, warnings.showwarning
    handlers: list[logging.Handler] = []
    if not root.handlers:
        handlers.append(logging.StreamHandler(sys.stdout))
    if is_main():
        handlers.append(_LogFile(output_dir / "log.txt"))
    formatter = logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%m-%d %H:%M:%S")
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.INFO if is_main() else logging.WARNING)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        if warnings.showwarning is not showwarning:  # unless the caller had captured warnings
            logging.captureWarnings(False)
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class _LogFile(logging.FileHandler):
    """Appends to a file that is not a link."""

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(open_to_append(Path(self.baseFilename)), encoding="utf-8")
