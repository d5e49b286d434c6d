"""Schedule of a run: its length, and when it logs, saves, evaluates and ends."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yacs.config import CfgNode

from detlite.distributed import is_main, max_over_processes

logger = logging.getLogger(__name__)

_KNOWN_FROM = 0.1  # of the time, after which the length of a run is known well enough
_EVALUATED_FROM = 2 / 3  # of the time
_FEW_STEPS, _FEW_EPOCHS = 100, 3  # half of what `detlite init` recommends at least


class Schedule:
    """Decides when a run logs, saves a checkpoint, evaluates and ends.

    The length of a run is SOLVER.MAX_ITER, MAX_EPOCHS or MAX_MINUTES. Minutes are those of loading,
    training and saving; the clock stops during evaluations. Rank 0 measures them. They are read
    after each iteration, so that the learning rate is a function of the values in a checkpoint. The
    run ends when the remaining time is shorter than an average iteration.

    Signals and hooks ask for the end in single processes. `start` and `advance` collect what they
    asked for, so that all processes get the same answers until the next iteration ends.

    Args:
        solver: SOLVER of the config, with the periods in iterations; 0: never.
        images: number of training images.
        has_test_sets: True if there is something to evaluate on.

    Attributes:
        max_iter: number of iterations; None if the time is limited.
        shortens_warmup: True if the length is not given in iterations. The warm-up then ends after
            a tenth of the run at the latest, since its iterations may exceed the run.
        is_last: True if no iteration follows.
        is_interrupted: True if a signal arrived in any process. The run ends without its final
            checkpoint, and can be resumed.
    """

    def __init__(self, solver: CfgNode, images: int, has_test_sets: bool = False) -> None:
        self._solver, self._has_test_sets = solver, has_test_sets
        self._epochs_per_step, self._warned = solver.IMS_PER_BATCH / max(images, 1), False
        self.max_iter: int | None = solver.MAX_ITER
        if solver.MAX_EPOCHS is not None:
            self.max_iter = math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH)
        self.shortens_warmup = solver.MAX_ITER is None
        self._limit = 60 * (solver.MAX_MINUTES or 0.0)  # seconds; 0: none
        # If no planned evaluation took place after two thirds of the time, because the machine is
        # slower than planned, the model is evaluated then.
        self._evaluated = not solver.TEST_PERIOD
        # Seconds in all and in the slowest iteration: values of rank 0 that all processes agreed
        # on after the last iteration.
        self._seconds = self._slowest = 0.0
        self._timed = 0  # number of timed iterations
        self._start = time.monotonic()
        self._finished = 0  # iterations
        self._finish_requested = self._has_final_checkpoint = False
        self.is_last = self.is_interrupted = False

    def fraction(self, done: int) -> float:
        """Return the finished fraction of the run, 0 to 1, after `done` iterations."""
        if self.max_iter is not None:
            return done / self.max_iter
        return min(self._seconds / self._limit, 1.0)

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the last iteration ends."""
        if self.max_iter is not None:
            return (self.max_iter - self._finished) * (self._step_seconds or self._seconds)
        return max(self._limit - self._seconds, 0.0)

    @property
    def _step_seconds(self) -> float:
        """Seconds of an iteration without the slowest, usually the first; 0 if unknown."""
        return (self._seconds - self._slowest) / (self._timed - 1) if self._timed > 1 else 0.0

    def finish(self) -> None:
        """Ask for the end of the run after the current iteration, in one process or in all."""
        self._finish_requested = True

    def start(self, finished: int, has_final_checkpoint: bool) -> None:
        """Start after `finished` iterations, perhaps from the final checkpoint of a run."""
        self._finished, self._has_final_checkpoint = finished, has_final_checkpoint
        self._finish_requested = max_over_processes([self._finish_requested])[0] > 0
        self.is_last = self._finish_requested or self._is_reached()

    def advance(self, finished: int, signal_received: bool) -> None:
        """Count an iteration; every process calls it after each one, with the number so far."""
        seconds = slowest = 0.0
        if is_main():
            seconds = time.monotonic() - self._start
            slowest = max(seconds - self._seconds, self._slowest)
        values = [signal_received, self._finish_requested, seconds, slowest]
        *flags, self._seconds, self._slowest = max_over_processes(values)
        self.is_interrupted, self._finish_requested = map(bool, flags)
        self._finished, self._timed = finished, self._timed + 1
        self.is_last = self._finish_requested or self._is_reached()

    def _is_reached(self) -> bool:
        if self.max_iter is not None:
            return self._finished >= self.max_iter
        return self.seconds_left < self._step_seconds or self.seconds_left == 0

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Mark a `with` block in which the model is evaluated, not trained."""
        start = time.monotonic()
        yield
        self._start += time.monotonic() - start
        self._evaluated = True

    def log_due(self) -> bool:
        """Return True if the averages since the last log are logged after this iteration."""
        return self.is_last or self._is_multiple_of(self._solver.LOG_PERIOD)

    def save_due(self) -> bool:
        """Return True if a checkpoint is saved after this iteration, before any evaluation."""
        periodic = self._is_multiple_of(self._solver.CHECKPOINT_PERIOD)
        return periodic or self.is_interrupted or self.evaluation_due()

    def evaluation_due(self) -> bool:
        """Return True if the model is evaluated after this iteration."""
        late = 0 < self._limit * _EVALUATED_FROM <= self._seconds and not self._evaluated
        asked = late or self._is_multiple_of(self._solver.TEST_PERIOD)
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

    def report(self) -> dict[str, float]:
        """Return the seconds left, and the share of limited time that is used, to log them."""
        share = {"share": self.fraction(0)} if self._limit else {}
        return share | {"eta_s": self.seconds_left}

    def outlook(self, done: int) -> str:
        """Describe the expected length of a run whose time is limited; warn if it is too short."""
        if not (self._limit and (step := self._step_seconds)):
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
        """Return the used time for a checkpoint; empty if the time is not limited."""
        names = ("seconds", "slowest", "timed", "evaluated")
        return {name: getattr(self, f"_{name}") for name in names if self._limit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; after an empty state, all of the time is left."""
        if state and self._limit:
            vars(self).update({f"_{name}": value for name, value in state.items()})
        self._start = time.monotonic() - self._seconds

    def __str__(self) -> str:
        if self.max_iter is not None:
            return f"{self.max_iter} iterations"
        return f"{self._limit / 60:g} minutes ({self._seconds / 60:.1f} used)"
