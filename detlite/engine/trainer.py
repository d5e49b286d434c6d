"""Training loop."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.data import CocoDataset, ConcatDataset, build_train_loader
from detlite.data.loading.batch_loader import Batch
from detlite.distributed import is_main, world_size
from detlite.errors import NonFiniteLossError
from detlite.evaluation.metrics import Metrics
from detlite.files.atomic_write import make_folder
from detlite.modeling.compilation import compile_losses
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import resolve_dtype

from .checkpointer import newest_checkpoint, resume_run, save_run
from .evaluate import EMA_SUFFIX, check_evaluation, evaluate, write_metrics
from .hooks.base import Hook, TrainingRun, build_hooks
from .hooks.best_checkpoint import BestCheckpoint, StoreScoreThreshold
from .hooks.ema import ModelEMA
from .hooks.metrics import Meters, MetricsWriter, Progress
from .run_files import FINAL_CHECKPOINT
from .schedule import RunSchedule, build_duration
from .schedule_free import averaged_weights
from .signals import StoppedError, StopSignals
from .solver import build_optimizer, build_scheduler, warn_of_frozen_norms
from .train_step import TrainStep
from .validation_loss import build_loss_dataset

logger = logging.getLogger(__name__)


class Trainer(TrainingRun):
    """Trains a detector with the settings of SOLVER, evaluates it, and writes the files of a run.

    Every process creates a Trainer, with hooks in addition to SOLVER.HOOKS, and calls `train`.
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
        self.duration = build_duration(cfg, len(train_set))
        self.schedule = RunSchedule(solver, self.duration, bool(test_sets))
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

        self.meters = Meters(self.duration.max_iter)
        self.signals = StopSignals()
        self.ema = ModelEMA(model, solver.EMA_DECAY) if solver.EMA_DECAY else None
        self.hooks = [
            *([self.ema] if self.ema else []),
            StoreScoreThreshold(),
            *build_hooks(cfg),
            *hooks,
            BestCheckpoint(solver.BEST_METRIC, solver.PATIENCE),  # may be a metric of a hook
            Progress(),
            MetricsWriter(self.output_dir),
        ]
        for hook in self.hooks:
            hook.trainer = self

    def train(self, resume: bool = False) -> dict[str, Metrics]:
        """Run all iterations, evaluate, and return the metrics as `evaluate` does.

        With `resume`, continue from the newest checkpoint in OUTPUT_DIR, with the same results as
        without the interruption.

        Raises:
            CheckpointError: all checkpoints are damaged, or the newest one does not fit.
            NonFiniteLossError: training diverged; earlier checkpoints are intact.
            StoppedError: SIGTERM, SIGHUP or SIGINT arrived; the step was finished and saved.
        """
        with ExitStack() as self._closing, self._naming_last_checkpoint():
            batches, schedule = self._start(resume), self.schedule
            with self.signals:
                if schedule.first_evaluation_due():
                    metrics = self._evaluate()
                self.model.train()
                while not schedule.is_last:
                    self.iteration += 1
                    with self.meters.timed("time"):
                        self._call_hooks("before_step")
                        with self.meters.timed("data_time"):
                            images, targets = next(batches)
                        losses = self.train_step(images, targets)
                        image_ids = [target["image_id"] for target in targets]
                        self.meters.update(self.iteration, losses, image_ids)
                        self._call_hooks("after_step", losses)
                    schedule.advance(self.iteration, bool(self.signals.received))
                    if schedule.log_due():
                        self._log()
                    self.scheduler.step()
                    if schedule.save_due():
                        self._save()
                    if schedule.is_interrupted:
                        signal = self.signals.received or "a signal to another process"
                        saved = f"saved after iteration {self.iteration}; continue by --resume"
                        raise StoppedError(signal, saved)
                    if schedule.evaluation_due():
                        metrics = self._evaluate()
            if hasattr(self.optimizer, "eval"):
                self.optimizer.eval()  # the averages are the result of a schedule-free optimizer
            self._call_hooks("after_train")
        return metrics

    def _start(self, resume: bool) -> Iterator[Batch]:
        """Restore the newest checkpoint if asked to, call the hooks, and return the batches."""
        resumed = self._resume() if resume else False
        self.scheduler = build_scheduler(self.cfg, self.optimizer, self.duration, self.iteration)
        batches = iter(build_train_loader(self.cfg, self.train_set, self.iteration))
        *hooks, writer = self.hooks
        for hook in hooks:
            self._start_hook(hook)
        self.schedule.start(self.iteration, resumed and self.checkpoint.name == FINAL_CHECKPOINT)
        if self.schedule.first_save_due():
            self._save()
        self._start_hook(writer)  # removes metrics that will be written again
        logger.info(
            "training on %s (%d images) for %s, %d iterations done, %d process(es) on %s in %s",
            self.train_set.name, len(self.train_set), self.duration, self.iteration,
            world_size(), self.model.device, resolve_dtype(self.cfg.DTYPE, self.model.device),
        )  # fmt: skip
        return batches

    def _resume(self) -> bool:
        """Restore the newest checkpoint; return False if there is none."""
        if previous := newest_checkpoint(self.output_dir):
            resume_run(self, previous)
            self.checkpoint = previous.path
        else:
            missing = "%s contains no checkpoint to resume: starting from scratch"
            logger.warning(missing, self.output_dir)
        return previous is not None

    def _start_hook(self, hook: Hook) -> None:
        hook.before_train()
        self._closing.callback(_close, hook)

    def _log(self) -> None:
        means = self.meters.read(self.iteration)
        means["lr"] = float(self.scheduler.get_last_lr()[0])
        self._call_hooks("after_log", means | self.duration.report())

    def _save(self) -> None:
        self.meters.check()  # save and evaluate nothing after a non-finite loss
        final = self.schedule.is_last
        name = FINAL_CHECKPOINT if final else f"model_{self.iteration:07d}.pth"
        self.checkpoint = self.output_dir / name
        with averaged_weights(self.optimizer):
            save_run(self, self.checkpoint)

    def _evaluate(self) -> dict[str, Metrics]:
        """Evaluate the weights, and the averaged weights with results in the folder `average`."""
        inputs, folder = (self.cfg, self.model, self.test_sets), self.output_dir / "average"
        immediately = self.signals.ending_immediately("continue by --resume")
        with averaged_weights(self.optimizer):
            with immediately, self.duration.evaluating():
                metrics = evaluate(*inputs, self.output_dir)
                if self.ema:
                    make_folder(folder)
                    with self.ema.applied():
                        averaged = evaluate(*inputs, folder)
                    metrics |= {name + EMA_SUFFIX: values for name, values in averaged.items()}
            if self.test_sets:
                self._call_hooks("after_evaluation", metrics)
        if is_main():  # with what hooks have added
            names = [dataset.name for dataset in self.test_sets]
            write_metrics({name: metrics[name] for name in names}, self.output_dir)
            if self.ema:
                write_metrics({name: metrics[name + EMA_SUFFIX] for name in names}, folder)
        return metrics

    def _call_hooks(self, method: str, *args: dict[str, Any] | dict[str, Tensor]) -> None:
        for hook in self.hooks:
            getattr(hook, method)(*args)

    @contextmanager
    def _naming_last_checkpoint(self) -> Iterator[None]:
        """Add the checkpoint to start from to the error of a non-finite loss."""
        try:
            yield
        except NonFiniteLossError as error:
            start = "start the run again"
            if self.checkpoint.exists():
                start = f"resume from {self.checkpoint}"
            raise NonFiniteLossError(f"{error} Then {start}") from error


def _close(hook: Hook) -> None:
    """Close a hook; log an error instead of hiding the one that may have ended the run."""
    try:
        hook.close()
    except Exception:
        logger.exception("cannot close the hook %s", type(hook).__name__)
