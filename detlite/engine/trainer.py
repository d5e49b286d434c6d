"""The training loop."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from detlite.config import ConfigError
from detlite.data import CocoDataset, JoinedDataset, build_train_loader
from detlite.distributed import world_size
from detlite.modeling.detector import Detector
from detlite.modeling.layers.norm import FrozenBatchNorm2d
from detlite.modeling.precision import resolve_dtype

from .evaluate import check_evaluation
from .hooks.metrics import METRICS_FILE, Meters, MetricsWriter
from .hooks.run_length import build_budget
from .hooks.signals import StoppedError, StopSignals
from .replay import keep_batch
from .resume import FINAL_CHECKPOINT, checkpoint_name, newest_checkpoint, numbered_checkpoints
from .trainer_state import build_state, evaluate_state
from .validation_loss import build_loss_dataset

logger = logging.getLogger(__name__)


def files_of_run(output_dir: Path) -> list[str]:
    """The names of some files by which the folder holds a training, if it does."""
    found = [name for name in (METRICS_FILE, FINAL_CHECKPOINT) if (output_dir / name).exists()]
    return found + [path.name for path in numbered_checkpoints(output_dir).values()][-1:]


def check_output_dir(output_dir: Path, resume: bool) -> None:
    """Raises a ConfigError where a new run, not one to `resume`, would mix with another's files."""
    found = files_of_run(output_dir)
    if found and not resume:
        raise ConfigError(
            f"OUTPUT_DIR {output_dir} holds a run already ({', '.join(found)}): go on with it by "
            "--resume (resume=True), name another OUTPUT_DIR, or remove the folder"
        )


def train(
    cfg: CfgNode,
    model: Detector,
    train_set: JoinedDataset,
    test_sets: Sequence[CocoDataset],
    resume: bool = False,
) -> dict[str, dict[str, Any]]:
    """Trains `model` for as long as SOLVER says, evaluates it and leaves a run's files.

    With `resume`, an interrupted run goes on from its last checkpoint as if nothing had happened;
    what came after that checkpoint is done again. Every process calls this, each for its share
    of the batches. There may be no `test_sets`.

    Returns:
        The final metrics of each test set by its name on rank 0; nothing on the others.

    Raises:
        ConfigError: SOLVER keys that cannot be used, or those of `check_evaluation`.
        DataError: a test set that the model cannot be measured on.
        CheckpointError: there are checkpoints to resume and none is whole, or the newest whole one
            does not fit.
        NonFiniteLossError: training diverged; what was saved before is as it was.
        StoppedError: SIGTERM or SIGHUP came; the step was finished and saved.
    """
    solver, device, output_dir = cfg.SOLVER, model.device, Path(cfg.OUTPUT_DIR)
    for test_set in test_sets:
        check_evaluation(cfg, model, test_set)
        if cfg.TEST.LOSS:
            build_loss_dataset(cfg, test_set.name)  # better now than after hours
    _warn_of_frozen_norms(cfg, model)
    budget = build_budget(cfg, len(train_set))
    if budget.max_iter is not None and budget.max_iter <= solver.BACKBONE_FREEZE_ITERS:
        logger.warning(
            "SOLVER.BACKBONE_FREEZE_ITERS is %d and the run has %d iterations: the body is not "
            "trained at all", solver.BACKBONE_FREEZE_ITERS, budget.max_iter,
        )  # fmt: skip
    state, step = build_state(cfg, model, budget)
    checkpoint = newest_checkpoint(output_dir) if resume else None
    start = state.resume(checkpoint) if checkpoint else 0
    if resume and not checkpoint:
        logger.warning("%s holds no checkpoint to resume: starting anew", output_dir)
    over = state.best.is_out_of_patience or budget.is_spent(start)
    if over and checkpoint and checkpoint.path.name != FINAL_CHECKPOINT:
        state.save(output_dir / FINAL_CHECKPOINT, start)  # the length is now less than what is done
    batches = iter(build_train_loader(cfg, train_set, start))
    meters = Meters(budget.max_iter, lambda iteration: keep_batch(cfg, train_set, iteration))
    again = False
    if checkpoint and start > 0 and test_sets and not over:
        # It may have been evaluated after it was saved; whether that came to its end nobody knows.
        ended = checkpoint.path.name == FINAL_CHECKPOINT
        again = ended or _due(start, solver.TEST_PERIOD) or budget.wants_evaluation
        again = again and budget.allows_evaluation
    writer = MetricsWriter(output_dir, start, again or over)

    def measure(iteration: int, name: str) -> dict[str, dict[str, Any]]:
        with stop.ending_at_once(), budget.evaluating():
            metrics = evaluate_state(state, test_sets, output_dir)
        if test_sets:
            state.best.update(metrics, output_dir / name)
            writer.evaluation(iteration, metrics)
        return metrics

    logger.info(
        "training on %s (%d images) from iteration %d on for %s, %d process(es) on %s in %s",
        train_set.name, len(train_set), start + 1, budget, world_size(), device,
        resolve_dtype(cfg.DTYPE, device),
    )  # fmt: skip
    with StopSignals() as stop:
        if again and checkpoint:
            measure(start, checkpoint.path.name)
        model.train()
        iteration = start
        for iteration in () if over else itertools.count(start + 1):
            with meters.timed("time"):
                with meters.timed("data_time"):
                    images, targets = next(batches)
                losses = step(iteration - 1, images, targets)
                if losses:
                    meters.update(iteration, losses, [target["image_id"] for target in targets])

            stops = budget.advance(bool(stop.received))
            last = budget.is_spent(iteration) or state.best.is_out_of_patience
            tests = _due(iteration, solver.TEST_PERIOD) or budget.wants_evaluation
            tests = tests and bool(test_sets) and budget.allows_evaluation and not last
            saves = last or stops or tests or _due(iteration, solver.CHECKPOINT_PERIOD)
            if saves:
                meters.check()  # nothing is saved or measured after a loss that is not finite
            if last or iteration % solver.LOG_PERIOD == 0:
                rate = {"lr": float(state.scheduler.get_last_lr()[0])}
                writer.training(iteration, meters.read(iteration), rate | budget.report())
            state.scheduler.step()
            name = FINAL_CHECKPOINT if last else checkpoint_name(iteration)
            if saves:
                state.save(output_dir / name, iteration)
            if stops:
                why = stop.received or "a signal to another process"
                raise StoppedError(
                    f"{why}: saved after iteration {iteration}; --resume goes on from it"
                )
            if tests:
                measure(iteration, name)
            if last:
                break

        metrics = measure(iteration, FINAL_CHECKPOINT)
    writer.close()
    return metrics


def _warn_of_frozen_norms(cfg: CfgNode, model: Detector) -> None:
    frozen = any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    if frozen and not cfg.MODEL.WEIGHT:
        key = "MODEL.RESNETS.NORM BN or GN"
        if cfg.MODEL.BACKBONE.CONV_BODY.startswith("timm/"):
            key = "MODEL.TIMM.FROZEN_NORM False"
        logger.warning(
            "batch norm is frozen, but MODEL.WEIGHT names no weights: a body without batch "
            "statistics hardly trains; from scratch use %s", key
        )  # fmt: skip


def _due(iteration: int, period: int) -> bool:
    return period > 0 and iteration % period == 0
