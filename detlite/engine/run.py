"""Whole runs from a config: build everything, train or evaluate, write files to OUTPUT_DIR."""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from yacs.config import CfgNode

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.loading import build_with_weights, load_weights, read_weights
from detlite.config import ConfigError
from detlite.data import (
    CocoDataset,
    ConcatDataset,
    build_test_datasets,
    build_train_dataset,
    build_train_loader,
    log_findings,
)
from detlite.distributed import is_main, process_group, rank, world_size
from detlite.files.atomic_write import make_folder, open_to_append
from detlite.modeling import build_model
from detlite.modeling.build import torch_device
from detlite.modeling.compilation import compile_losses
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import resolve_dtype

from .checkpointer import newest_checkpoint, resume_run, save_run
from .evaluate import EMA_SUFFIX, build_loss_dataset, check_evaluation, evaluate, write_metrics
from .hooks import build_hooks
from .hooks.best_checkpoint import BestCheckpoint, store_score_threshold
from .hooks.ema import ModelEMA
from .hooks.metrics import MetricsWriter
from .rng import seed_all
from .run_config import complete_config
from .run_files import FINAL_CHECKPOINT, METRICS_FILE, describe_environment, run_lock, write_config
from .schedule import Schedule
from .schedule_free import averaged_weights
from .solver import build_optimizer, build_scheduler, warn_of_frozen_norms
from .train_step import TrainStep
from .trainer import Evaluation, Hook, Trainer

# Draws the result of a run: its config, model and test sets, and the last evaluation.
Draw = Callable[[CfgNode, DetectionModel, list[CocoDataset], Evaluation], None]

logger = logging.getLogger(__name__)


class TrainingRun(Trainer):
    """Trains a detector with the settings of SOLVER, evaluates it, and writes the files of a run.

    Every process creates one, with hooks in addition to SOLVER.HOOKS, and calls `train`.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: DetectionModel,
        train_set: ConcatDataset,
        test_sets: Sequence[CocoDataset],
        hooks: Sequence[Hook] = (),
    ) -> None:
        solver = cfg.SOLVER
        for test_set in test_sets:
            check_evaluation(cfg, model, test_set)
            if cfg.TEST.LOSS:
                build_loss_dataset(cfg, test_set.name)  # raises errors now, not after hours
        self.cfg, self.model = cfg, model
        self.train_set, self.test_sets = train_set, test_sets
        self.output_dir = Path(cfg.OUTPUT_DIR)
        self.checkpoint = self.output_dir / FINAL_CHECKPOINT
        self.schedule = Schedule(solver, len(train_set), bool(test_sets))
        warn_of_frozen_norms(cfg, model)

        optimize_for_training(model)
        if cfg.MODEL.COMPILE:
            compile_losses(model)
        self.optimizer = build_optimizer(cfg, model)
        self.scaler = torch.amp.GradScaler(model.device.type, enabled=cfg.DTYPE == "float16")
        if self.scaler.is_enabled():
            # torch warns of a wrong order of calls if the optimizer's first step is skipped.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        self.train_step = TrainStep(cfg, model, self.optimizer, self.scaler)

        self.ema = ModelEMA(model, solver.EMA_DECAY) if solver.EMA_DECAY else None
        self.hooks = [
            *([self.ema] if self.ema else []),
            *build_hooks(cfg),
            *hooks,
            BestCheckpoint(solver.BEST_METRIC, solver.PATIENCE),  # may be a metric of a hook
            MetricsWriter(self.output_dir),
        ]
        for hook in self.hooks:
            hook.trainer = self

    def train(self, resume: bool = False) -> Evaluation:
        """Run all iterations, evaluate, and return the metrics as `evaluate.evaluate` does.

        With `resume`, continue from the newest checkpoint in OUTPUT_DIR, with the same results as
        without the interruption.

        Raises:
            CheckpointError: all checkpoints are damaged, or the newest one does not fit.
            NonFiniteLossError, StoppedError: see `Trainer.run`.
        """
        previous = newest_checkpoint(self.output_dir) if resume else None
        if previous:
            resume_run(self, previous)
            self.checkpoint = previous.path
        elif resume:
            missing = "%s contains no checkpoint to resume: starting from scratch"
            logger.warning(missing, self.output_dir)
        self.scheduler = build_scheduler(self.cfg, self.optimizer, self.schedule, self.iteration)
        logger.info(
            "training on %s (%d images) for %s, %d iterations done, %d process(es) on %s in %s",
            self.train_set.name, len(self.train_set), self.schedule, self.iteration,
            world_size(), self.model.device, resolve_dtype(self.cfg.DTYPE, self.model.device),
        )  # fmt: skip
        loader = build_train_loader(self.cfg, self.train_set, self.iteration)
        resumes_final = previous is not None and previous.path.name == FINAL_CHECKPOINT
        del previous  # free its memory
        return self.run(iter(loader), resumes_final)

    def save(self) -> None:
        self.meters.check()  # save and evaluate nothing after a non-finite loss
        final = self.schedule.is_last
        name = FINAL_CHECKPOINT if final else f"model_{self.iteration:07d}.pth"
        self.checkpoint = self.output_dir / name
        with averaged_weights(self.optimizer):
            save_run(self, self.checkpoint)

    def evaluate(self) -> Evaluation:
        """Evaluate the weights, and the averaged weights with results in the folder `average`."""
        inputs, folder = (self.cfg, self.model, self.test_sets), self.output_dir / "average"
        immediately = self.signals.ending_immediately("continue by --resume")
        with averaged_weights(self.optimizer):
            with immediately, self.schedule.evaluating():
                metrics = evaluate(*inputs, self.output_dir)
                if self.ema:
                    make_folder(folder)
                    with self.ema.applied():
                        averaged = evaluate(*inputs, folder)
                    metrics |= {name + EMA_SUFFIX: values for name, values in averaged.items()}
            if self.test_sets:
                store_score_threshold(self, metrics)
                self.call_hooks("after_evaluation", metrics)
        for suffix, place in (("", self.output_dir), (EMA_SUFFIX, folder)):
            names = [one.name for one in self.test_sets if one.name + suffix in metrics]
            write_metrics({name: metrics[name + suffix] for name in names}, place)
        return metrics


def run_training(
    cfg: CfgNode, draw: Draw, resume: bool = False, hooks: Sequence[Hook] = ()
) -> Evaluation:
    """Train and evaluate, and call `draw` in rank 0; every process calls it. See `TrainingRun`."""
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
    metrics = TrainingRun(cfg, model, train_set, test_sets, hooks).train(resume)
    if is_main():
        draw(cfg, model, test_sets, metrics)
    return metrics


def run_evaluation(cfg: CfgNode, weights: Checkpoint | None = None) -> Evaluation:
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
    run = Trainer()
    run.cfg, run.model, run.test_sets, run.output_dir = cfg, model, datasets, output_dir
    run.checkpoint, run.iteration = weights.path, int(weights.training.get("iteration", 0))
    run.hooks = build_hooks(cfg)
    del weights  # free its memory
    metrics = evaluate(cfg, model, datasets, output_dir)
    for hook in run.hooks:
        hook.trainer = run
        hook.after_evaluation(metrics)
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
