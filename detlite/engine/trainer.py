"""Training loop."""

import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.data import CocoDataset, ConcatDataset, build_train_loader
from detlite.distributed import any_process, world_size
from detlite.evaluation.metrics import Metrics
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.layers.norm import FrozenBatchNorm2d
from detlite.modeling.optimize_for_training import optimize_for_training
from detlite.modeling.precision import resolve_dtype

from .checkpointer import resume_run, save_run
from .errors import NonFiniteLossError
from .evaluate import build_loss_dataset, check_evaluation, evaluate
from .hooks.base import HOOKS, Hook
from .hooks.best_checkpoint import BestCheckpoint, StoreScoreThreshold
from .hooks.ema import EMA_SUFFIX, ModelEMA
from .hooks.freezing import BackboneFreezeSchedule
from .hooks.metrics import MachineLoad, Meters, MetricsWriter
from .run_files import FINAL_CHECKPOINT, newest_checkpoint
from .run_length import build_run_length
from .schedule_free import averaged_weights
from .signals import StoppedError, StopSignals
from .solver import build_optimizer, build_scheduler
from .train_step import TrainStep

logger = logging.getLogger(__name__)


class Trainer:
    """Trains a detector with the settings of SOLVER, evaluates it, and writes the files of a run.

    Every process creates a Trainer, with hooks in addition to SOLVER.HOOKS, and calls `train`.

    Attributes:
        iteration: number of the current iteration, from 1. Before the first step of a run, and
            after a step, it is the number of finished iterations.
        checkpoint: file that the run saved last or resumed from.
        is_last: True if no iteration follows the current one.
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
        self.iteration = 0
        self.checkpoint = self.output_dir / FINAL_CHECKPOINT
        self.repeats_evaluation = False  # a resumed run evaluates the model that it starts from
        self.is_last = False
        self._interrupted = False  # a signal arrived in any process
        self._finishing = False
        self.run_length = build_run_length(cfg, len(train_set))
        self._warn_of_frozen_layers()

        optimize_for_training(model)
        self.optimizer = build_optimizer(cfg, model)
        self.scaler = torch.amp.GradScaler(model.device.type, enabled=cfg.DTYPE == "float16")
        if self.scaler.is_enabled() or solver.MAX_SKIPPED_STEPS:
            # torch warns of a wrong order of calls if the optimizer's first step is skipped.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        freeze = BackboneFreezeSchedule(model, solver.BACKBONE_FREEZE_ITERS)
        freeze.update(0)
        self.train_step = TrainStep(cfg, model, self.optimizer, self.scaler)

        self.meters = Meters(self.run_length.max_iter)
        self.signals = StopSignals()
        self.ema = ModelEMA(model, solver.EMA_DECAY) if solver.EMA_DECAY else None
        self.best = BestCheckpoint(solver.BEST_METRIC, solver.PATIENCE)
        named = [HOOKS.get(name, "SOLVER.HOOKS")(cfg) for name in solver.HOOKS]
        self.user_hooks: list[Hook] = [*named, *hooks]
        self.hooks: list[Hook] = [
            freeze,
            *([self.ema] if self.ema else []),
            StoreScoreThreshold(),  # before the best checkpoint is copied
            self.best,
            *self.user_hooks,
            MachineLoad(),
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
        with ExitStack() as self._closing:
            try:
                return self._train(resume)
            except NonFiniteLossError as error:
                exists = self.checkpoint.exists()
                start = f"resume from {self.checkpoint}" if exists else "start the run again"
                raise NonFiniteLossError(f"{error} Then {start}") from error

    def _train(self, resume: bool) -> dict[str, Metrics]:
        if resume:
            self._resume()
        self.scheduler = build_scheduler(self.cfg, self.optimizer, self.run_length, self.iteration)
        batches = iter(build_train_loader(self.cfg, self.train_set, self.iteration))
        self._before_train()
        logger.info(
            "training on %s (%d images) for %s, %d iterations done, %d process(es) on %s in %s",
            self.train_set.name, len(self.train_set), self.run_length, self.iteration,
            world_size(), self.model.device, resolve_dtype(self.cfg.DTYPE, self.model.device),
        )  # fmt: skip
        with self.signals:
            if self.repeats_evaluation and not self.is_last:
                self._evaluate()
            self.model.train()
            while not self.is_last:
                self.iteration += 1
                with self.meters.timed("time"):
                    self._call_hooks("before_step")
                    with self.meters.timed("data_time"):
                        images, targets = next(batches)
                    losses = self.train_step(images, targets)
                    if losses:
                        image_ids = [target["image_id"] for target in targets]
                        self.meters.update(self.iteration, losses, image_ids)
                    self._call_hooks("after_step", losses)
                self._agree_on_end()
                self._maybe_log()
                self.scheduler.step()
                self._maybe_save()
                if self._evaluation_due():
                    self._evaluate()
            metrics = self._evaluate()
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()  # the averages are the result of a schedule-free optimizer
        self._call_hooks("after_train")
        return metrics

    def finish(self) -> None:
        """End the run after the current iteration, with the final checkpoint and evaluation.

        Hooks call this, in one process or in all. If called in `before_train`, no iteration
        follows; if called after an evaluation, one more follows. A resumed run does not remember
        it: a hook that ended a run should call it again in `before_train`.
        """
        self._finishing = True

    def _resume(self) -> None:
        if checkpoint := newest_checkpoint(self.output_dir):
            resume_run(self, checkpoint)
            self.checkpoint = checkpoint.path
        else:
            missing = "%s contains no checkpoint to resume: starting from scratch"
            logger.warning(missing, self.output_dir)

    def _before_train(self) -> None:
        """Call the hooks, and decide how a resumed run starts."""
        *hooks, writer = self.hooks
        for hook in hooks:
            self._start_hook(hook)
        resumed = self.iteration > 0
        self.is_last = any_process(self._finishing) or self.run_length.is_reached(self.iteration)
        ended = resumed and self.checkpoint.name == FINAL_CHECKPOINT
        if self.is_last and not ended:  # the run was shortened: this is its final checkpoint
            self._save()
        # The interruption may have come before the end of the evaluation.
        self.repeats_evaluation = self.is_last or (resumed and self._evaluation_due(ended))
        self._start_hook(writer)  # removes metrics that will be written again

    def _start_hook(self, hook: Hook) -> None:
        hook.before_train()
        self._closing.callback(_close, hook)

    def _agree_on_end(self) -> None:
        """Agree with all processes if this iteration is the last one, or a signal arrived."""
        self._interrupted, self._finishing = self.run_length.advance(
            bool(self.signals.received), self._finishing
        )
        self.is_last = self._finishing or self.run_length.is_reached(self.iteration)

    def _maybe_log(self) -> None:
        if self._save_due():
            self.meters.check()  # save and evaluate nothing after a non-finite loss
        if self.is_last or self.iteration % self.cfg.SOLVER.LOG_PERIOD == 0:
            means = self.meters.read(self.iteration)
            if means:
                means["lr"] = float(self.scheduler.get_last_lr()[0])
                self._call_hooks("after_log", means | self.run_length.report())

    def _maybe_save(self) -> None:
        if self._save_due():
            self._save()
        if self._interrupted:
            raise StoppedError(
                self.signals.received or "a signal to another process",
                f"saved after iteration {self.iteration}; continue by --resume",
            )

    def _save_due(self) -> bool:
        periodic = _is_multiple(self.iteration, self.cfg.SOLVER.CHECKPOINT_PERIOD)
        return self.is_last or self._interrupted or periodic or self._evaluation_due()

    def _evaluation_due(self, due: bool = False) -> bool:
        """Return True if an evaluation is due now, apart from the final one."""
        due |= _is_multiple(self.iteration, self.cfg.SOLVER.TEST_PERIOD)
        due |= self.run_length.evaluation_needed
        allowed = bool(self.test_sets) and self.run_length.allows_evaluation
        return due and allowed and not self.is_last

    def _save(self) -> None:
        name = FINAL_CHECKPOINT if self.is_last else f"model_{self.iteration:07d}.pth"
        self.checkpoint = self.output_dir / name
        with averaged_weights(self.optimizer):
            save_run(self, self.checkpoint)

    def _evaluate(self) -> dict[str, Metrics]:
        """Evaluate the weights, and the averaged weights with results in the folder `average`."""
        inputs, folder = (self.cfg, self.model, self.test_sets), self.output_dir / "average"
        immediately = self.signals.ending_immediately("continue by --resume")
        with averaged_weights(self.optimizer):
            with immediately, self.run_length.evaluating():
                metrics = evaluate(*inputs, self.output_dir)
                if self.ema:
                    folder.mkdir(exist_ok=True)
                    with self.ema.applied():
                        averaged = evaluate(*inputs, folder)
                    metrics |= {name + EMA_SUFFIX: values for name, values in averaged.items()}
            if self.test_sets:
                self._call_hooks("after_evaluation", metrics)
        return metrics

    def _call_hooks(self, method: str, *args: dict[str, Any] | dict[str, Tensor]) -> None:
        for hook in self.hooks:
            getattr(hook, method)(*args)

    def _warn_of_frozen_layers(self) -> None:
        iterations, frozen = self.run_length.max_iter, self.cfg.SOLVER.BACKBONE_FREEZE_ITERS
        if iterations is not None and iterations <= frozen:
            logger.warning(
                "SOLVER.BACKBONE_FREEZE_ITERS is %d and the run has %d iterations: the backbone is "
                "not trained at all", frozen, iterations,
            )  # fmt: skip
        model = self.cfg.MODEL
        norms = any(isinstance(module, FrozenBatchNorm2d) for module in self.model.modules())
        if norms and not model.WEIGHT:
            timm = model.BACKBONE.CONV_BODY.startswith("timm/")
            key = "MODEL.TIMM.FROZEN_NORM False" if timm else "MODEL.RESNETS.NORM BN or GN"
            logger.warning(
                "batch norm is frozen, but MODEL.WEIGHT is empty: a backbone with random weights "
                "hardly trains without batch statistics. Set %s to train from scratch", key
            )  # fmt: skip


def _close(hook: Hook) -> None:
    """Close a hook; log an error instead of hiding the one that may have ended the run."""
    try:
        hook.close()
    except Exception:
        logger.exception("cannot close the hook %s", type(hook).__name__)


def _is_multiple(iteration: int, period: int) -> bool:
    return period > 0 and iteration % period == 0
