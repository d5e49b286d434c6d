"""Everything that a training run needs to go on after an interruption as if there were none."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from yacs.config import CfgNode

from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.conversion.checkpoint.files import Checkpoint, CheckpointError, save_checkpoint
from detlite.conversion.checkpoint.loading import config_of, load_weights
from detlite.data import CocoDataset
from detlite.distributed import all_gather_objects, barrier, is_main, rank, world_size
from detlite.modeling.detector import Detector

from .evaluate import evaluate
from .hooks.best_checkpoint import BestCheckpoint
from .hooks.ema import OF_AVERAGE, WeightAverage
from .hooks.run_length import Budget
from .resume import AVERAGE_CHECKPOINT, FINAL_CHECKPOINT, numbered_checkpoints
from .rng import rng_state, set_rng_state
from .solver import build_optimizer, build_scheduler
from .train_step import TrainingStep

logger = logging.getLogger(__name__)


@dataclass
class TrainingState:
    """What a run needs to go on, saved and resumed as one."""

    cfg: CfgNode
    model: Detector
    optimizer: Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler
    step: TrainingStep
    best: BestCheckpoint
    budget: Budget
    average: WeightAverage | None = None

    def save(self, path: Path, iteration: int) -> None:
        """Writes the checkpoint of `iteration` finished iterations; every process calls it."""
        rng = all_gather_objects(rng_state(self.model.device))
        if is_main():
            checkpoint = Checkpoint(
                path,
                self.model.state_dict(),
                self.model.categories,
                self.cfg.dump(),
                convention_of(self.cfg).name,
                list(self.cfg.MODEL.CONVENTION_OVERRIDE),
                training={
                    "iteration": iteration,
                    "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(),
                    "scaler": self.scaler.state_dict(),
                    "best": self.best.state_dict(),
                    "budget": self.budget.state_dict(),
                    "skipped": self.step.skipped,
                    "average": self.average.state_dict() if self.average else {},
                    "rng": rng,
                },
            )
            save_checkpoint(checkpoint)
            logger.info("saved %s", path)
            if self.average and path.name == FINAL_CHECKPOINT:
                beside = path.with_name(AVERAGE_CHECKPOINT)
                weights = replace(checkpoint, path=beside, model=self.average.values, training={})
                save_checkpoint(weights, last=False)
            if kept := self.cfg.SOLVER.CHECKPOINTS_KEPT:
                for old in list(numbered_checkpoints(path.parent).values())[:-kept]:
                    old.unlink()
        barrier()

    def resume(self, checkpoint: Checkpoint) -> int:
        """Puts back all that `save` wrote and returns the number of finished iterations.

        Raises:
            CheckpointError: it is not of a training run or does not fit, or another optimizer
                wrote it. Other keys that changed since are logged.
            ConfigError: it was trained by another convention.
        """
        load_weights(self.model, checkpoint)
        path, training = checkpoint.path, checkpoint.training
        changed = _changed_keys(checkpoint, self.cfg)
        if "SOLVER.OPTIMIZER" in changed:
            before, now = changed["SOLVER.OPTIMIZER"]
            raise CheckpointError(
                f"{path}: was trained by SOLVER.OPTIMIZER {before}, now it is {now}; resume with "
                "the optimizer it was saved with, or name it as MODEL.WEIGHT in another OUTPUT_DIR"
            )
        try:
            self.optimizer.load_state_dict(training["optimizer"])
            self.scheduler.load_state_dict(training["scheduler"])
            self.scaler.load_state_dict(training["scaler"])
            if self.average:
                # Switched on since, it starts from the weights.
                start = {"updates": 0, "values": self.model.state_dict()}
                self.average.load_state_dict(training["average"] or start)
            self.best.load_state_dict(training["best"])
            self.step.skipped = training["skipped"]
            iteration, rng = training["iteration"], training["rng"]
            # Runs of older versions were counted in iterations.
            self.budget.load_state_dict(training.get("budget", {}), iteration)
        except KeyError as error:
            raise CheckpointError(
                f"{path}: has no {error}, so training cannot go on from it; to start anew from its "
                "weights, name it as MODEL.WEIGHT in another OUTPUT_DIR"
            ) from error
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path}: its optimizer state does not fit the config ({error}); resume with the "
                "config it was saved with"
            ) from error
        if changed:
            logger.warning(
                "%s was saved with another config: %s. Learning rate, momentum and weight decay "
                "stay those it was saved with",
                path, "; ".join(f"{key} {a}, now {b}" for key, (a, b) in changed.items()),
            )  # fmt: skip
        if changed.keys() & {"SEED", "SOLVER.IMS_PER_BATCH"}:  # all that batches depend on
            logger.warning("another SEED or IMS_PER_BATCH: the order of the images changes")
        if len(rng) == world_size():
            set_rng_state(rng[rank()], self.model.device)
        else:
            logger.warning(
                "%s was saved by %d processes, now there are %d: random numbers start anew",
                path, len(rng), world_size(),
            )  # fmt: skip
        logger.info("resumed %s at iteration %d", path, iteration)
        return iteration


def build_state(
    cfg: CfgNode, model: Detector, budget: Budget
) -> tuple[TrainingState, TrainingStep]:
    """The state of a run at its beginning, and the step that it is trained by."""
    optimizer = build_optimizer(cfg, model)
    scheduler = build_scheduler(cfg, optimizer, budget)
    scaler = torch.amp.GradScaler(model.device.type, enabled=cfg.DTYPE == "float16")
    if scaler.is_enabled() or cfg.SOLVER.MAX_SKIPPED_STEPS:
        # The optimizer's first step may be skipped, which torch takes for a wrong order.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
    decay = cfg.SOLVER.EMA_DECAY
    average = WeightAverage(model, decay) if decay else None
    step = TrainingStep(cfg, model, optimizer, scaler, average)
    best = BestCheckpoint(cfg.SOLVER.BEST_METRIC, cfg.SOLVER.PATIENCE)
    state = TrainingState(cfg, model, optimizer, scheduler, scaler, step, best, budget, average)
    return state, step


def evaluate_state(
    state: TrainingState, test_sets: Sequence[CocoDataset], output_dir: Path
) -> dict[str, dict[str, Any]]:
    """`evaluate` for the weights and, if there is one, for their average.

    The average's files are in the folder `average`, its metrics under "<data set> average".
    """
    metrics = evaluate(state.cfg, state.model, test_sets, output_dir)
    if state.average:
        folder = output_dir / "average"
        folder.mkdir(exist_ok=True)
        with state.average.in_place_of_weights():
            averaged = evaluate(state.cfg, state.model, test_sets, folder)
        metrics |= {name + OF_AVERAGE: row for name, row in averaged.items()}
    return metrics


def _changed_keys(checkpoint: Checkpoint, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """(value in the config of a checkpoint, value now) by key, where they differ."""
    # Both as YAML gives them, which knows no tuples.
    before = dict(flatten(config_of(checkpoint) or {}))
    # load_weights refuses another one; what states none has that of its weights by now.
    before.pop("MODEL.CONVENTION", None)
    now = dict(flatten(yaml.safe_load(cfg.dump())))
    return {
        key: (before[key], now[key])
        for key in sorted(before.keys() & now)
        if before[key] != now[key] and key != "OUTPUT_DIR"
    }
