"""The training loop, the interface of the hooks that it calls, and its averages of losses."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.distributed import all_gather_objects, reduce_mean
from detlite.errors import NonFiniteLossError
from detlite.modeling.detection_model import DetectionModel

from .schedule import Schedule
from .signals import StoppedError, StopSignals
from .train_step import TrainStep

if TYPE_CHECKING:  # the loop only needs batches
    from detlite.data import CocoDataset, ConcatDataset

logger = logging.getLogger(__name__)

Batch = tuple[list[Tensor], list[dict[str, Any]]]  # images and targets
Evaluation = dict[str, dict[str, Any]]  # metrics by dataset, kind and name


class Hook:
    """Code that the trainer calls around its steps; subclasses override what they need.

        @HOOKS.register("StopAtLoss")
        class StopAtLoss(Hook):
            def __init__(self, cfg):
                self.below = 0.1

            def after_log(self, metrics):
                if metrics["loss"] < self.below:
                    self.trainer.finish()

    SOLVER.HOOKS names registered hooks, which are built with the config; `detlite.train` also
    accepts hook objects. Every process calls every method at the same point, so a hook may
    communicate between processes. It should write files only if `detlite.distributed.is_main()`.

    Attributes:
        trainer: the run that calls the hook, set before the first call.
    """

    trainer: "Trainer"

    def before_train(self) -> None:
        """Run before the first iteration, after a checkpoint was loaded."""

    def before_step(self) -> None:
        """Run before each training step. `trainer.iteration` is its number, from 1."""

    def after_step(self, losses: dict[str, Tensor]) -> None:
        """Run after each training step, with the scalar losses of this process.

        They are on the model's device, and reading one waits for it.
        """

    def after_log(self, metrics: dict[str, float]) -> None:
        """Run every SOLVER.LOG_PERIOD iterations and after the last one.

        The metrics are "loss", each "loss_...", "time", "data_time", "lr", and "eta_s": means over
        the iterations since the last call, and over all processes.
        """

    def after_evaluation(self, metrics: Evaluation) -> None:
        """Run after each evaluation. `trainer.checkpoint` is the evaluated checkpoint.

        The metrics are values by dataset, kind ("bbox", "segm", ...) and name ("AP", ...) on rank
        0; empty in other processes. Those that a hook adds, as numbers or `MetricValue`, are
        written to evaluation.json and known to later hooks and SOLVER.BEST_METRIC.

        `detlite test` calls only this method, of the hooks in SOLVER.HOOKS.
        """

    def after_train(self) -> None:
        """Run after the last evaluation."""

    def close(self) -> None:
        """Close files and connections: runs when training ends, also by an error.

        It runs in reverse order of the hooks, for those whose `before_train` returned. Its errors
        are logged.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what checkpoints store: tensors, numbers, strings, lists and dicts of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class Meters:
    """Averages losses and step times between two calls of `read`.

    Losses stay on their device until they are read or checked, so that no step waits for it. A
    non-finite loss is therefore reported later than it occurs.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._names: list[str] = []
        self._steps: list[tuple[int, list[Any], Tensor]] = []  # iteration, image ids, losses [L]

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the `with` block takes to a meter."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def update(self, iteration: int, losses: dict[str, Tensor], image_ids: list[Any]) -> None:
        """Add the scalar losses of one step."""
        self._names = list(losses)
        stacked = torch.stack([loss.detach().float() for loss in losses.values()])
        self._steps.append((iteration, image_ids, stacked))

    def check(self) -> list[list[float]]:
        """Return the losses of each step since the last `read`, in one transfer from the device.

        Every process calls it. NonFiniteLossError names the iteration and its images.
        """
        rows = torch.stack([losses for *_, losses in self._steps]).tolist() if self._steps else []
        problems = list(filter(None, all_gather_objects(self._first_problem(rows))))
        if not problems:
            return rows
        iteration = min(number for number, _ in problems)
        listed = "; ".join(text for number, text in problems if number == iteration)
        raise NonFiniteLossError(
            f"iteration {iteration}: the loss is not finite ({listed}). Look at these images, "
            "lower SOLVER.BASE_LR, increase SOLVER.WARMUP_ITERS, clip gradients "
            "(SOLVER.CLIP_GRAD_NORM) or set DTYPE bfloat16. Then resume the run from its last "
            "checkpoint (--resume), or start it again if it has none"
        )

    def _first_problem(self, rows: list[list[float]]) -> tuple[int, str] | None:
        """Return the first iteration with a non-finite loss, and its losses and images."""
        for row, (iteration, image_ids, _) in zip(rows, self._steps, strict=True):
            if not all(map(math.isfinite, row)):
                named = zip(self._names, row, strict=True)
                listed = ", ".join(f"{name} {value:.4g}" for name, value in named)
                return iteration, f"{listed} on images {image_ids}"
        return None

    def read(self) -> dict[str, float]:
        """Return means over all processes and the steps since the last call, after `check`.

        On CUDA, they include `max_memory_mib`, the peak memory of tensors.
        """
        rows, steps = self.check(), len(self._steps)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        totals = {"loss": sum(sums), **dict(zip(self._names, sums, strict=True)), **self._seconds}
        means = reduce_mean({name: total / steps for name, total in totals.items()})
        device = self._steps[0][-1].device
        if device.type == "cuda":
            means["max_memory_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        self._seconds.clear()
        self._steps.clear()
        return means


class Trainer:
    """The training loop. `TrainingRun` sets the attributes, saves and evaluates.

    Attributes:
        cfg: the config.
        model: the detector. With a single process, it is also what the optimizer trains.
        train_set, test_sets: the datasets.
        output_dir: folder of all files of the run.
        optimizer, scaler: the optimizer, and the gradient scaler of float16.
        scheduler: sets the learning rate after each step.
        train_step: updates the weights on a batch.
        schedule: decides when the run logs, saves, evaluates and ends.
        hooks: all hooks, in the order in which they are called.
        iteration: number of the current iteration, from 1. Before the first step of a run, and
            after a step, it is the number of finished iterations.
        checkpoint: file that the run saved last or resumed from.
    """

    cfg: CfgNode
    model: DetectionModel
    train_set: "ConcatDataset"
    test_sets: "Sequence[CocoDataset]"
    output_dir: Path
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    scheduler: torch.optim.lr_scheduler.LambdaLR
    train_step: TrainStep
    schedule: Schedule
    hooks: Sequence[Hook]
    iteration: int = 0
    checkpoint: Path

    def save(self) -> None:
        """Save a checkpoint; every process calls it."""
        raise NotImplementedError

    def evaluate(self) -> Evaluation:
        """Evaluate the model, call the hooks, and return the metrics; every process calls it."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the run after the current iteration, with the final checkpoint and evaluation.

        Hooks call this, in one process or in all. If called in `before_train`, no iteration
        follows; if called after an evaluation, one more follows. A resumed run does not remember
        it: a hook that ended a run should call it again in `before_train`.
        """
        self.schedule.finish()

    def run(self, batches: Iterator[Batch], has_final_checkpoint: bool = False) -> Evaluation:
        """Train on batches until the schedule ends, and return the metrics of the last evaluation.

        Raises:
            NonFiniteLossError: training diverged; earlier checkpoints are intact.
            StoppedError: SIGTERM, SIGHUP or SIGINT arrived; the step was finished and saved.
        """
        self.meters, self.signals, schedule = Meters(), StopSignals(), self.schedule
        with ExitStack() as closing:
            for hook in self.hooks:
                if hook is self.hooks[-1]:  # removes metrics that will be written again
                    schedule.start(self.iteration, has_final_checkpoint)
                    if schedule.first_save_due():
                        self.save()
                hook.before_train()
                closing.callback(_close, hook)
            with self.signals:
                if schedule.first_evaluation_due():
                    metrics = self.evaluate()
                self.model.train()
                while not schedule.is_last:
                    self.iteration += 1
                    with self.meters.timed("time"):
                        self.call_hooks("before_step")
                        with self.meters.timed("data_time"):
                            images, targets = next(batches)
                        losses = self.train_step(images, targets)
                        image_ids = [target["image_id"] for target in targets]
                        self.meters.update(self.iteration, losses, image_ids)
                        self.call_hooks("after_step", losses)
                    schedule.advance(self.iteration, bool(self.signals.received))
                    if schedule.log_due():
                        means = self.meters.read()
                        means["lr"] = float(self.scheduler.get_last_lr()[0])
                        self.call_hooks("after_log", means | schedule.report())
                    self.scheduler.step()
                    if schedule.save_due():
                        self.save()
                    if schedule.is_interrupted:
                        signal = self.signals.received or "a signal to another process"
                        saved = f"saved after iteration {self.iteration}; continue by --resume"
                        raise StoppedError(signal, saved)
                    if schedule.evaluation_due():
                        metrics = self.evaluate()
            if hasattr(self.optimizer, "eval"):
                self.optimizer.eval()  # the averages are the result of a schedule-free optimizer
            self.call_hooks("after_train")
        return metrics

    def call_hooks(self, method: str, *args: dict[str, Any] | dict[str, Tensor]) -> None:
        """Call a method of all hooks."""
        for hook in self.hooks:
            getattr(hook, method)(*args)


def _close(hook: Hook) -> None:
    """Close a hook; log an error instead of hiding the one that may have ended the run."""
    try:
        hook.close()
    except Exception:
        logger.exception("cannot close the hook %s", type(hook).__name__)
