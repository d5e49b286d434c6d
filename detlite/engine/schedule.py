"""Schedule of a run: its duration, and when it logs, saves, evaluates and ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yacs.config import CfgNode

from detlite.distributed import any_process, max_over_processes

logger = logging.getLogger(__name__)


class RunSchedule:
    """Decides when a run logs, saves a checkpoint, evaluates and ends.

    Signals and hooks ask for the end in single processes. `start` and `advance` collect what they
    asked for, so that all processes get the same answers until the next iteration ends.

    Args:
        solver: SOLVER of the config, with the periods in iterations; 0: never.
        duration: the duration of the run.
        has_test_sets: True if there is something to evaluate on.

    Attributes:
        is_last: True if no iteration follows.
        is_interrupted: True if a signal arrived in any process. The run ends without its final
            checkpoint, and can be resumed.
    """

    def __init__(self, solver: CfgNode, duration: Duration, has_test_sets: bool) -> None:
        self._solver, self._duration, self._has_test_sets = solver, duration, has_test_sets
        self._finished = 0  # iterations
        self._finish_requested = self._has_final_checkpoint = False
        self.is_last = self.is_interrupted = False

    def finish(self) -> None:
        """Ask for the end of the run after the current iteration, in one process or in all."""
        self._finish_requested = True

    def start(self, finished: int, has_final_checkpoint: bool) -> None:
        """Start after `finished` iterations, perhaps from the final checkpoint of a run."""
        self._finished, self._has_final_checkpoint = finished, has_final_checkpoint
        requested = any_process(self._finish_requested)
        self.is_last = requested or self._duration.is_reached(finished)

    def advance(self, finished: int, signal_received: bool) -> None:
        """Count an iteration; every process calls it after each one, with the number so far."""
        self._finished = finished
        self.is_interrupted, self._finish_requested = self._duration.advance(
            signal_received, self._finish_requested
        )
        self.is_last = self._finish_requested or self._duration.is_reached(finished)

    def log_due(self) -> bool:
        """Return True if the averages since the last log are logged after this iteration."""
        return self.is_last or self._is_multiple_of(self._solver.LOG_PERIOD)

    def save_due(self) -> bool:
        """Return True if a checkpoint is saved after this iteration, before any evaluation."""
        periodic = self._is_multiple_of(self._solver.CHECKPOINT_PERIOD)
        return periodic or self.is_interrupted or self.evaluation_due()

    def evaluation_due(self) -> bool:
        """Return True if the model is evaluated after this iteration."""
        asked = self._is_multiple_of(self._solver.TEST_PERIOD) or self._duration.evaluation_needed
        return self.is_last or (asked and self._can_evaluate)

    def first_save_due(self) -> bool:
        """Return True if a run without iterations lacks its final checkpoint: it was shortened."""
        return self.is_last and not self._has_final_checkpoint

    def first_evaluation_due(self) -> bool:
        """Return True if the model is evaluated before the first iteration.

        This is the evaluation of the checkpoint that the run resumes from, which may not have been
        finished. After a final checkpoint, a longer run repeats the final evaluation.
        """
        repeats_final = self._has_final_checkpoint and self._can_evaluate
        return self.is_last or (self._finished > 0 and (repeats_final or self.evaluation_due()))

    @property
    def _can_evaluate(self) -> bool:
        """True if there are test sets, and time for evaluations other than the final one."""
        return self._has_test_sets and self._duration.allows_evaluation

    def _is_multiple_of(self, period: int) -> bool:
        return period > 0 and self._finished % period == 0


class Duration:
    """A fixed number of iterations.

    Attributes:
        max_iter: number of iterations; None if unknown in advance.
        shortens_warmup: True if the duration is not given in iterations. The warm-up then ends
            after a tenth of the run at the latest, since its iterations may exceed the run.
    """

    evaluation_needed = False  # True: evaluate now, to measure how long it takes
    allows_evaluation = True  # False: no time for evaluations other than the last one

    def __init__(self, max_iter: int | None, shortens_warmup: bool = False) -> None:
        self.max_iter = max_iter
        self.shortens_warmup = shortens_warmup

    def fraction(self, done: int) -> float:
        """Return the finished fraction of the run, 0 to 1, after `done` iterations."""
        assert self.max_iter is not None
        return done / self.max_iter

    def is_reached(self, done: int) -> bool:
        """Return True if the run ends after `done` iterations."""
        assert self.max_iter is not None
        return done >= self.max_iter

    def advance(self, *flags: bool) -> list[bool]:
        """Count one iteration in every process; return each flag, True if any process sets it."""
        return [value > 0 for value in max_over_processes(flags)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Mark a `with` block in which the model is evaluated, not trained."""
        yield

    def report(self) -> dict[str, float]:
        """Return additional metrics to log."""
        return {}

    def outlook(self, done: int) -> str:
        """Describe the expected length of a run of unknown length, for the log."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def __str__(self) -> str:
        return f"{self.max_iter} iterations"


def build_duration(cfg: CfgNode, images: int) -> Duration:
    """Build the duration of a run on `images` from SOLVER.MAX_ITER, MAX_EPOCHS or MAX_MINUTES."""
    solver = cfg.SOLVER
    if solver.MAX_MINUTES is not None:
        from .time_limit import TimeLimit

        step, evaluates = solver.IMS_PER_BATCH / max(images, 1), solver.TEST_PERIOD > 0
        return TimeLimit(solver.MAX_MINUTES, solver.MINUTES_INCLUDE_TEST, evaluates, step)
    if solver.MINUTES_INCLUDE_TEST:
        logger.warning("SOLVER.MINUTES_INCLUDE_TEST has no effect without SOLVER.MAX_MINUTES")
    if solver.MAX_EPOCHS is not None:
        iterations = math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH)
        return Duration(iterations, shortens_warmup=True)
    return Duration(solver.MAX_ITER)
