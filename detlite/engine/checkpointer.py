"""Save and restore everything that a run needs to continue bit for bit after an interruption."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch.optim import Optimizer
from yacs.config import CfgNode

from detlite.checkpoint.contents import Checkpoint
from detlite.checkpoint.files import LAST_CHECKPOINT_FILE, read_checkpoint, save_checkpoint
from detlite.checkpoint.loading import load_weights
from detlite.checkpoint.stored_config import checkpoint_config
from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.distributed import all_gather_objects, barrier, is_main, rank, world_size
from detlite.errors import CheckpointError, DamagedCheckpointError
from detlite.structures.categories import CategoryMatch

from .hooks.ema import find_average
from .rng import rng_state, set_rng_state
from .run_files import AVERAGE_CHECKPOINT, FINAL_CHECKPOINT, numbered_checkpoints
from .schedule_free import PROGRESS, restore_trained_weights
from .trainer import Hook, Trainer

logger = logging.getLogger(__name__)


def save_run(run: Trainer, path: Path) -> None:
    """Write a checkpoint of a run; every process calls it.

    The averaged weights are saved separately next to the final checkpoint. Checkpoints beyond
    SOLVER.CHECKPOINTS_KEPT are deleted.
    """
    cfg, model = run.cfg, run.model
    rng = all_gather_objects(rng_state(model.device))
    if is_main():
        states = {name: hook.state_dict() for name, hook in hooks_by_name(run.hooks).items()}
        training = {
            "iteration": run.iteration,
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "run_length": run.schedule.state_dict(),
            "hooks": {name: state for name, state in states.items() if state},
            "rng": rng,
        }
        convention, overridden = convention_of(cfg).name, list(cfg.MODEL.CONVENTION_OVERRIDE)
        weights, text = model.state_dict(), cfg.dump()
        checkpoint = Checkpoint(
            path, weights, model.categories, text, convention, overridden, training=training
        )
        save_checkpoint(checkpoint)
        logger.info("saved %s", path)
        average = find_average(run.hooks)
        if average and path.name == FINAL_CHECKPOINT:
            file = path.with_name(AVERAGE_CHECKPOINT)
            averaged = replace(checkpoint, path=file, model=average.values, training={})
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


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest undamaged checkpoint of the run in `folder`; None if it has none.

    The file last_checkpoint names it. If that checkpoint is damaged, or the file is missing, read
    all others, and log the problems. CheckpointError if all are damaged, or one cannot be read for
    another reason.
    """
    pointer, problems = folder / LAST_CHECKPOINT_FILE, list[str]()
    files = [folder / FINAL_CHECKPOINT, *reversed(numbered_checkpoints(folder).values())]
    files = [path for path in files if path.is_file()]

    def undamaged(paths: Sequence[Path]) -> Iterator[Checkpoint]:
        for path in paths:
            try:
                yield read_checkpoint(path)
            except DamagedCheckpointError as error:
                problems.append(str(error))

    if pointer.is_file():
        name = pointer.read_bytes().decode(errors="replace").strip()
        if name not in {path.name for path in folder.iterdir() if path.is_file()}:
            problems.append(f"{pointer} names {name[:80]!r}, which does not exist")
        elif last := next(undamaged([folder / name]), None):
            return last
    elif files:
        problems.append(f"{pointer} is missing")
    # The final checkpoint is older than the numbered ones if the run was extended.
    newest = max(undamaged(files), key=lambda x: int(x.training.get("iteration", 0)), default=None)
    listed = "; ".join(dict.fromkeys(problems))
    if newest is not None:
        logger.warning("%s. Resuming from the newest undamaged checkpoint: %s", listed, newest.path)
    elif problems:
        raise CheckpointError(
            f"{folder} contains no undamaged checkpoint to resume: {listed}. Restore one, or "
            f"remove {LAST_CHECKPOINT_FILE} and the damaged files to start from scratch"
        )
    return newest


def resume_run(run: Trainer, checkpoint: Checkpoint) -> None:
    """Restore everything that `save_run` wrote, and log the config keys that have changed since.

    CheckpointError if the checkpoint has no training state, or does not fit the config.
    """
    match = CategoryMatch(
        checkpoint.categories, run.model.categories, (str(checkpoint.path), "the datasets")
    )
    if match.differ:
        raise CheckpointError(
            f"{checkpoint.path}: the run was started with other categories, or in another order "
            f"({match}): resume it with those, or start a new run in another OUTPUT_DIR with the "
            "file as MODEL.WEIGHT (--weights), which matches them by name"
        )
    load_weights(run.model, checkpoint, training_state=True)
    path, training = checkpoint.path, checkpoint.training
    changed = _changed_keys(checkpoint, run.cfg)
    try:
        # The momentum of a schedule-free optimizer is part of its averages.
        is_free = run.cfg.SOLVER.OPTIMIZER == "ScheduleFreeAdamW"
        fixed = {"SOLVER.OPTIMIZER", *(["SOLVER.MOMENTUM"] if is_free else [])}
        for key in sorted(changed.keys() & fixed):
            raise ValueError("{} {}, now {}".format(key, *changed[key]))
        _load_momentum(run.optimizer, training["optimizer"])
        run.scaler.load_state_dict(training["scaler"])
        run.iteration, rng = training["iteration"], training["rng"]
        run.schedule.load_state_dict(training["run_length"])
        for name, hook in hooks_by_name(run.hooks).items():
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
            path, listed, run.iteration + 1,
        )  # fmt: skip
    if len(rng) == world_size():
        set_rng_state(rng[rank()], run.model.device)
    else:
        logger.warning(
            "%s was saved by %d processes, now there are %d: random numbers start again from SEED",
            path, len(rng), world_size(),
        )  # fmt: skip
    logger.info("resumed %s at iteration %d", path, run.iteration)


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


def _changed_keys(checkpoint: Checkpoint, cfg: CfgNode) -> dict[str, tuple[Any, Any]]:
    """Return (value in the checkpoint's config, value now) of each key that differs."""
    before = dict(flatten(checkpoint_config(checkpoint) or {}))
    # load_weights checks the convention.
    before.pop("MODEL.CONVENTION", None)
    now = dict(flatten(json.loads(json.dumps(cfg))))  # through JSON, which turns tuples into lists
    return {
        key: (before[key], now[key])
        for key in sorted(before.keys() & now)
        if before[key] != now[key] and key not in ("IMPORTS", "OUTPUT_DIR", "TEST.SCORE_THRESHOLD")
    }
