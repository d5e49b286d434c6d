"""Save and restore everything that a run needs to continue bit for bit after an interruption."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from detlite.checkpoint.files import Checkpoint, save_checkpoint
from detlite.conventions import convention_of
from detlite.distributed import all_gather_objects, barrier, is_main

from .hooks.base import Hook
from .rng import rng_state
from .run_files import AVERAGE_CHECKPOINT, FINAL_CHECKPOINT, numbered_checkpoints

if TYPE_CHECKING:
    from .trainer import Trainer

logger = logging.getLogger(__name__)


def save_run(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint of a run; every process calls it.

    The averaged weights are saved separately next to the final checkpoint. Checkpoints beyond
    SOLVER.CHECKPOINTS_KEPT are deleted.
    """
    cfg, model, ema = trainer.cfg, trainer.model, trainer.ema
    hooks = hooks_by_name(trainer.user_hooks)
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
            "hooks": {name: hook.state_dict() for name, hook in hooks.items()},
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


def hooks_by_name(hooks: Sequence[Hook]) -> dict[str, Hook]:
    """Key hooks by class name, and further hooks of the same class by "name 2", ..."""
    named: dict[str, Hook] = {}
    for hook in hooks:
        name = base = type(hook).__name__
        while name in named:
            name = f"{base} {int(name.removeprefix(base) or 1) + 1}"
        named[name] = hook
    return named
