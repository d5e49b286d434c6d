"""Schedule of a run: its duration, and when it logs, saves, evaluates and ends."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yacs.config import CfgNode

from detlite.distributed import any_process, is_main, max_over_processes

logger = logging.getLogger(__name__)

_KNOWN_FROM = 0.1  # of the time, after which the length of a run is known well enough
_EVALUATED_FROM = 2 / 3  # of the time
_FEW_STEPS, _FEW_EPOCHS = 100, 3  # half of what `detlite init` recommends at least


class Duration:
    """A fixed number of iterations.

    Attributes:
        max_iter: number of iterations; None if unknown in advance.
        shortens_warmup: True if the duration is not given in iterations. The warm-up then ends
            after a tenth of the run at the latest, since its iterations may exceed the run.
        evaluation_needed: True if the model is evaluated now, although it is not planned.
    """

    evaluation_needed = False

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


class TimeLimit(Duration):
    """A number of minutes of loading, training and saving; the clock stops during evaluations.

    Rank 0 measures the time. It is read after each iteration, so that the learning rate is a
    function of the values in a checkpoint. The run ends when the remaining time is shorter than an
    average iteration.

    Args:
        minutes: the limit.
        evaluates: evaluations are planned. If none took place after two thirds of the time, because
            the machine is slower than planned, the model is evaluated then.
        epochs_per_step: epochs of an iteration. If the time allows only few, the log says so early.
    """

    def __init__(
        self, minutes: float, evaluates: bool = False, epochs_per_step: float = 1.0
    ) -> None:
        super().__init__(None, shortens_warmup=True)
        self._limit = 60 * minutes
        self._epochs_per_step, self._warned = epochs_per_step, False
        self._evaluated = not evaluates
        # Seconds in all and in the slowest iteration: values of rank 0 that all processes agreed
        # on after the last iteration.
        self._seconds = self._slowest = 0.0
        self._timed = 0  # number of timed iterations
        self._start = time.monotonic()

    @property
    def evaluation_needed(self) -> bool:  # type: ignore[override]
        return not self._evaluated and self._seconds >= _EVALUATED_FROM * self._limit

    @property
    def seconds_left(self) -> float:
        """Seconds until the last iteration ends."""
        return max(self._limit - self._seconds, 0.0)

    @property
    def _step_seconds(self) -> float:
        """Seconds of an iteration without the slowest, usually the first; 0 if unknown."""
        return (self._seconds - self._slowest) / (self._timed - 1) if self._timed > 1 else 0.0

    def fraction(self, done: int) -> float:
        return min(self._seconds / self._limit, 1.0)

    def is_reached(self, done: int) -> bool:
        return self.seconds_left < self._step_seconds or self.seconds_left == 0

    def advance(self, *flags: bool) -> list[bool]:
        seconds = slowest = 0.0
        if is_main():
            seconds = time.monotonic() - self._start
            slowest = max(seconds - self._seconds, self._slowest)
        *agreed, self._seconds, self._slowest = max_over_processes([*flags, seconds, slowest])
        self._timed += 1
        return [value > 0 for value in agreed]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._start += time.monotonic() - start
        self._evaluated = True

    def report(self) -> dict[str, float]:
        return {"share": self.fraction(0), "eta_s": self.seconds_left}

    def outlook(self, done: int) -> str:
        if not (step := self._step_seconds):
            return ""
        steps = done + self.seconds_left / step
        epochs = steps * self._epochs_per_step
        total = f"about {steps:.0f} steps in all, {epochs:.1f} epochs"
        is_short = steps < _FEW_STEPS or epochs < _FEW_EPOCHS
        if is_short and self.fraction(done) > _KNOWN_FROM and not self._warned:
            self._warned = True
            logger.warning(
                "at this speed SOLVER.MAX_MINUTES allows %s, too few for a good model: raise it, "
                "stop other programs, or lower INPUT.MIN_SIZE_TRAIN", total
            )  # fmt: skip
        return f", {total}"

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self._seconds,
            "slowest": self._slowest,
            "timed": self._timed,
            "evaluated": self._evaluated,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The state is empty if the run was limited in iterations before: all of its time is left.
        self._seconds, self._slowest = state.get("seconds", 0.0), state.get("slowest", 0.0)
        self._timed = state.get("timed", 0)
        self._evaluated = state.get("evaluated", self._evaluated)
        self._start = time.monotonic() - self._seconds

    def __str__(self) -> str:
        return f"{self._limit / 60:g} minutes ({self._seconds / 60:.1f} used)"


def build_duration(cfg: CfgNode, images: int) -> Duration:
    """Build the duration of a run on `images` from SOLVER.MAX_ITER, MAX_EPOCHS or MAX_MINUTES."""
    solver = cfg.SOLVER
    if solver.MAX_MINUTES is not None:
        epochs_per_step = solver.IMS_PER_BATCH / max(images, 1)
        return TimeLimit(solver.MAX_MINUTES, solver.TEST_PERIOD > 0, epochs_per_step)
    if solver.MAX_EPOCHS is not None:
        iterations = math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH)
        return Duration(iterations, shortens_warmup=True)
    return Duration(solver.MAX_ITER)


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
        return self.is_last or (asked and self._has_test_sets)

    def first_save_due(self) -> bool:
        """Return True if a run without iterations lacks its final checkpoint: it was shortened."""
        return self.is_last and not self._has_final_checkpoint

    def first_evaluation_due(self) -> bool:
        """Return True if the model is evaluated before the first iteration.

        This is the evaluation of the checkpoint that the run resumes from, which may not have been
        finished. After a final checkpoint, a longer run repeats the final evaluation.
        """
        repeats_final = self._has_final_checkpoint and self._has_test_sets
        return self.is_last or (self._finished > 0 and (repeats_final or self.evaluation_due()))

    def _is_multiple_of(self, period: int) -> bool:
        return period > 0 and self._finished % period == 0
