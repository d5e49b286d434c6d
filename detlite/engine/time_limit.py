"""Duration of a run in minutes."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detlite.distributed import is_main, max_over_processes

from .schedule import Duration

logger = logging.getLogger(__name__)

_KNOWN_FROM = 0.1  # of the time, after which the length of a run is known well enough
_FEW_STEPS, _FEW_EPOCHS = 100, 3  # half of what `detlite init` recommends at least
_COUNTERS = ("seconds", "evaluations", "longest", "slowest", "timed")  # attributes to restore


class TimeLimit(Duration):
    """A number of minutes of loading, training and saving.

    Rank 0 measures the time. The used fraction is fixed after each iteration, so that the learning
    rate is a function of the values in a checkpoint. The run ends when the remaining time is
    shorter than an average iteration.

    The clock stops during evaluations unless `include_evaluation` is set. Then the time of the
    longest evaluation so far is reserved for the last one, and the model is evaluated halfway if it
    was not before. `evaluates` is True if evaluations are planned: if none took place after two
    thirds of the time, because the machine is slower than planned, the model is evaluated then.
    An iteration is `epochs_per_step` epochs. If the time allows only few, the log says so early.
    """

    def __init__(
        self,
        minutes: float,
        include_evaluation: bool = False,
        evaluates: bool = False,
        epochs_per_step: float = 1.0,
    ) -> None:
        super().__init__(None, shortens_warmup=True)
        self._epochs_per_step, self._warned = epochs_per_step, False
        self._evaluated_from = 0.5 if include_evaluation else 2 / 3 if evaluates else math.inf
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
        return not self._longest and self._seconds >= self._limit * self._evaluated_from

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
        return self.seconds_left < self._step_seconds or self.seconds_left == 0

    @property
    def _step_seconds(self) -> float:
        """Seconds of an iteration without the slowest, usually the first; 0 if unknown."""
        others = self._timed - 1
        return (self._seconds - self._evaluations - self._slowest) / others if others > 0 else 0.0

    def outlook(self, done: int) -> str:
        if not (step := self._step_seconds):
            return ""
        steps = done + self.seconds_left / step
        epochs = steps * self._epochs_per_step
        total = f"about {steps:.0f} steps in all, {epochs:.1f} epochs"
        is_short = steps < _FEW_STEPS or epochs < _FEW_EPOCHS
        if is_short and self._fraction > _KNOWN_FROM and not self._warned:
            self._warned = True
            logger.warning(
                "at this speed SOLVER.MAX_MINUTES allows %s, too few for a good model: raise it, "
                "stop other programs, or lower INPUT.MIN_SIZE_TRAIN", total
            )  # fmt: skip
        return f", {total}"

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
