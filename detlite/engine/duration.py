"""Duration of a run: a number of iterations or epochs, or minutes."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yacs.config import CfgNode

from detlite.distributed import is_main, max_over_processes

logger = logging.getLogger(__name__)

_COUNTERS = ("seconds", "evaluations", "longest", "slowest", "timed")  # attributes to restore


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

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    def __str__(self) -> str:
        return f"{self.max_iter} iterations"


class TimeLimit(Duration):
    """A number of minutes of loading, training and saving.

    Rank 0 measures the time. The used fraction is fixed after each iteration, so that the learning
    rate is a function of the values in a checkpoint. The run ends when the remaining time is
    shorter than an average iteration.

    The clock stops during evaluations unless `include_evaluation` is set. Then the time of the
    longest evaluation so far is reserved for the last one, and the model is evaluated halfway if it
    was not before.
    """

    def __init__(self, minutes: float, include_evaluation: bool = False) -> None:
        super().__init__(None, shortens_warmup=True)
        self._limit = 60 * minutes
        self._include_evaluation = include_evaluation
        self._fraction = 0.0
        # Seconds in all, in evaluations that count, in the longest evaluation and in the slowest
        # iteration: values of rank 0 that all processes agreed on after the last iteration.
        self._seconds = self._evaluations = self._longest = self._slowest = 0.0
        self._trained = 0.0  # seconds without evaluations after the last iteration
        self._timed = 0  # number of timed iterations
        self._start = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Seconds until the last iteration ends."""
        return max(self._limit - self._reserved - self._seconds, 0.0)

    @property
    def evaluation_needed(self) -> bool:  # type: ignore[override]
        return self._include_evaluation and not self._longest and self._seconds >= self._limit / 2

    @property
    def allows_evaluation(self) -> bool:  # type: ignore[override]
        return not self._include_evaluation or self._longest < self.seconds_left

    @property
    def _reserved(self) -> float:
        """Seconds reserved for the last evaluation."""
        return self._longest if self._include_evaluation else 0.0

    @property
    def _used(self) -> float:
        return self._seconds / max(self._limit - self._reserved, self._seconds, 1e-9)

    def fraction(self, done: int) -> float:
        return self._fraction

    def is_reached(self, done: int) -> bool:
        # The slowest iteration, usually the first, does not predict the next one.
        others = self._timed - 1
        step = (self._seconds - self._evaluations - self._slowest) / others if others > 0 else 0.0
        return self.seconds_left < step or self.seconds_left == 0

    def advance(self, *flags: bool) -> list[bool]:
        counters = [0.0] * 4
        if is_main():
            seconds = time.monotonic() - self._start
            step = seconds - self._evaluations - self._trained
            counters = [seconds, self._evaluations, self._longest, max(step, self._slowest)]
        *agreed, self._seconds, self._evaluations, self._longest, self._slowest = (
            max_over_processes([*flags, *counters])
        )
        self._timed += 1
        self._trained = self._seconds - self._evaluations
        self._fraction = max(self._used, self._fraction)
        return [value > 0 for value in agreed]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self._longest = max(self._longest, seconds)
        if self._include_evaluation:
            self._evaluations += seconds
            if 2 * seconds > self._limit:
                logger.warning(
                    "an evaluation takes %.2g minutes, more than half of SOLVER.MAX_MINUTES: the "
                    "last one may end after the limit", seconds / 60,
                )  # fmt: skip
        else:
            self._start += seconds

    def report(self) -> dict[str, float]:
        return {"share": self._fraction, "eta_s": self.seconds_left}

    def state_dict(self) -> dict[str, Any]:
        counters = {name: getattr(self, f"_{name}") for name in _COUNTERS}
        return {"limit": self._limit, **counters, "fraction": self._fraction}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The state is empty if the run was limited in iterations before: all of its time is left.
        for name in _COUNTERS:
            setattr(self, f"_{name}", state.get(name, 0))
        self._trained = self._seconds - self._evaluations
        self._start = time.monotonic() - self._seconds
        same_limit = state.get("limit") == self._limit
        self._fraction = state["fraction"] if same_limit else self._used

    def __str__(self) -> str:
        return f"{self._limit / 60:g} minutes ({self._seconds / 60:.1f} used)"


def build_duration(cfg: CfgNode, images: int) -> Duration:
    """Build the duration of a run on `images` from SOLVER.MAX_ITER, MAX_EPOCHS or MAX_MINUTES."""
    solver = cfg.SOLVER
    if solver.MAX_MINUTES is not None:
        return TimeLimit(solver.MAX_MINUTES, solver.MINUTES_INCLUDE_TEST)
    if solver.MINUTES_INCLUDE_TEST:
        logger.warning("SOLVER.MINUTES_INCLUDE_TEST has no effect without SOLVER.MAX_MINUTES")
    if solver.MAX_EPOCHS is not None:
        iterations = math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH)
        return Duration(iterations, shortens_warmup=True)
    return Duration(solver.MAX_ITER)
