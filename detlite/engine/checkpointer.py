"""Save and restore everything that a run needs to continue bit for bit after an interruption."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import yaml
from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.checkpoint.errors import CheckpointError
from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.checkpoint.stored_config import checkpoint_config
from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.distributed import all_gather_objects, barrier, is_main, rank, world_size

from .hooks.base import Hook
from .rng import rng_state, set_rng_state
from .run_files import AVERAGE_CHECKPOINT, FINAL_CHECKPOINT, numbered_checkpoints
from .schedule_free import PROGRESS, restore_trained_weights

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


def save_run(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint of a run; every process calls it.

    The averaged weights are saved separately next to the final checkpoint. Checkpoints beyond
    SOLVER.CHECKPOINTS_KEPT are deleted.
    """
    cfg, model, ema = trainer.cfg, trainer.model, trainer.ema
    rng = all_gather_objects(rng_state(model.device))
    if is_main():
        training = {
            "iteration": trainer.iteration,
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
            "best": trainer.best.state_dict(),
            "run_length": trainer.duration.state_dict(),
            "skipped": trainer.train_step.skipped,
            "average": ema.state_dict() if ema else {},
            "hooks": {k: hook.state_dict() for k, hook in _by_name(trainer.user_hooks).items()},
            "rng": rng,
        }
        convention, overridden = convention_of(cfg).name, list(cfg.MODEL.CONVENTION_OVERRIDE)
        weights, text = model.state_dict(), cfg.dump()
        checkpoint = Checkpoint(
            path, weights, model.categories, text, convention, overridden, training=training
        )
        save_checkpoint(checkpoint)
        logger.info("saved %s", path)
        if ema and path.name == FINAL_CHECKPOINT:
            average = path.with_name(AVERAGE_CHECKPOINT)
            averaged = replace(checkpoint, path=average, model=ema.values, training={})
            save_checkpoint(averaged, last=False)
        if kept := cfg.SOLVER.CHECKPOINTS_KEPT:
            for old in list(numbered_checkpoints(path.parent).values())[:-kept]:
                old.unlink()
    barrier()


def resume_run(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Restore everything that `save_run` wrote, and log the config keys that have changed since.

    CheckpointError if the checkpoint has no training state, or does not fit the config.
    """
    load_weights(trainer.model, checkpoint, training_state=True)
    path, training = checkpoint.path, checkpoint.training
    changed = _changed_keys(checkpoint, trainer.cfg)
    try:
        # The momentum of a schedule-free optimizer is part of its averages.
        is_free = trainer.cfg.SOLVER.OPTIMIZER == "ScheduleFreeAdamW"
        fixed = {"SOLVER.OPTIMIZER", *(["SOLVER.MOMENTUM"] if is_free else [])}
        for key in sorted(changed.keys() & fixed):
            raise ValueError("{} {}, now {}".format(key, *changed[key]))
        _load_momentum(trainer.optimizer, training["optimizer"])
        trainer.scaler.load_state_dict(training["scaler"])
        if trainer.ema:
            trainer.ema.load_state_dict(training["average"])
        trainer.best.load_state_dict(training["best"])
        trainer.train_step.skipped = training["skipped"]
        trainer.iteration, rng = training["iteration"], training["rng"]
        trainer.duration.load_state_dict(training["run_length"])
        for name, hook in _by_name(trainer.user_hooks).items():
            if name in training["hooks"]:
                hook.load_state_dict(training["hooks"][name])
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{path}: its training state does not fit the config ({problem}): resume with the "
            "config that it was saved with, or name the file as MODEL.WEIGHT of a new run in "
            "another OUTPUT_DIR"
        ) from error
    if changed:
        listed = "; ".join(f"{key} {before}, now {now}" for key, (before, now) in changed.items())
        logger.warning(
            "%s was saved with another config: %s. The new values apply from iteration %d on",
            path, listed, trainer.iteration + 1,
        )  # fmt: skip
    if len(rng) == world_size():
        set_rng_state(rng[rank()], trainer.model.device)
    else:
        logger.warning(
            "%s was saved by %d processes, now there are %d: random numbers start again from SEED",
            path, len(rng), world_size(),
        )  # fmt: skip
    logger.info("resumed %s at iteration %d", path, trainer.iteration)


def _load_momentum(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the state of each parameter by its name; keep the current learning rates etc."""

    def names(state: dict[str, Any]) -> list[str]:
        return [name for group in state["param_groups"] for name in group["param_names"]]

    current, states = optimizer.state_dict(), saved["state"]
    before, now = names(saved), names(current)
    if different := sorted({*before} ^ {*now}):
        raise ValueError(f"other parameters are trained: {shorten(', '.join(different), 150)}")
    # Parameters are numbered in order. Those that are still frozen have no state.
    by_name = {name: states[number] for number, name in enumerate(before) if number in states}
    current["state"] = {number: by_name[name] for number, name in enumerate(now) if name in by_name}
    groups = {name: group for group in saved["param_groups"] for name in group["param_names"]}
    for group in current["param_groups"]:
        group |= {k: v for k, v in groups[group["param_names"][0]].items() if k in PROGRESS}
    optimizer.load_state_dict(current)
    restore_trained_weights(optimizer)


def _by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Key hooks by class name, and further hooks of the same class by "name 2", ..."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name = base = type(hook).__name__
        while name in named:
            name = f"{base} {int(name.removeprefix(base) or 1) + 1}"
        named[name] = hook
    return named


def _changed_keys(checkpoint: Checkpoint, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """Return (value in the checkpoint's config, value now) of each key that differs."""
    before = dict(flatten(checkpoint_config(checkpoint) or {}))
    # load_weights checks the convention.
    before.pop("MODEL.CONVENTION", None)
    now = dict(flatten(yaml.safe_load(cfg.dump())))  # through YAML, which turns tuples into lists
    return {
        key: (before[key], now[key])
        for key in sorted(before.keys() & now)
        if before[key] != now[key] and key not in ("OUTPUT_DIR", "TEST.SCORE_THRESHOLD")
    }
