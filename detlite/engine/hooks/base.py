"""Interface of hooks, and the registry that the config key SOLVER.HOOKS refers to."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.data import CocoDataset, ConcatDataset
from detlite.engine.schedule import Duration, RunSchedule
from detlite.modeling.detection_model import DetectionModel
from detlite.registry import Registry


class TrainingRun:
    """State of a training run, as hooks see it and checkpoints store it. `Trainer` runs it.

    Attributes:
        cfg: the config.
        model: the detector. With a single process, it is also what the optimizer trains.
        train_set, test_sets: the datasets.
        output_dir: folder of all files of the run.
        optimizer, scaler: the optimizer, and the gradient scaler of float16.
        duration: the length of the run.
        schedule: decides when the run logs, saves, evaluates and ends.
        hooks: all hooks, in the order in which they are called.
        iteration: number of the current iteration, from 1. Before the first step of a run, and
            after a step, it is the number of finished iterations.
        checkpoint: file that the run saved last or resumed from.
    """

    cfg: CfgNode
    model: DetectionModel
    train_set: ConcatDataset
    test_sets: Sequence[CocoDataset]
    output_dir: Path
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    duration: Duration
    schedule: RunSchedule
    hooks: "list[Hook]"
    iteration: int = 0
    checkpoint: Path

    def finish(self) -> None:
        """End the run after the current iteration, with the final checkpoint and evaluation.

        Hooks call this, in one process or in all. If called in `before_train`, no iteration
        follows; if called after an evaluation, one more follows. A resumed run does not remember
        it: a hook that ended a run should call it again in `before_train`.
        """
        self.schedule.finish()


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

    trainer: TrainingRun

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

        The metrics are "loss", each "loss_...", "time", "data_time", "lr", and "eta_s" if known:
        means over the iterations since the last call, and over all processes.
        """

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
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


# A builder is called with the config. It may be a class whose __init__ accepts the config.
HOOKS: Registry[Callable[[CfgNode], Hook]] = Registry(
    "hook",
    on_demand={
        "WandB": "detlite.apps.trackers",
        "MLflow": "detlite.apps.trackers",
    },
)


def build_hooks(cfg: CfgNode) -> list[Hook]:
    """Build the hooks of SOLVER.HOOKS."""
    return [HOOKS.get(name, "SOLVER.HOOKS")(cfg) for name in cfg.SOLVER.HOOKS]
