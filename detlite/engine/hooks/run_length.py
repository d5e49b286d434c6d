"""How long a run is, in iterations, epochs or minutes, and how much of it is done."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from yacs.config import CfgNode

from detlite.distributed import is_main, largest

logger = logging.getLogger(__name__)


class Budget:
    """A number of iterations.

    Attributes:
        max_iter: it; None where it is not known beforehand.
        shortens_warm_up: whether the length is not stated in iterations, so that those of a warm-up
            may be more than the run has: it ends after a tenth of the run at the latest.
        wants_evaluation: whether the model should be evaluated now, to know how long that takes.
        allows_evaluation: whether there is time for one beside the last.
    """

    wants_evaluation = False
    allows_evaluation = True

    def __init__(self, max_iter: int | None, shortens_warm_up: bool = False) -> None:
        self.max_iter = max_iter
        self.shortens_warm_up = shortens_warm_up

    def share(self, done: int) -> float:
        """Which part of the run, 0 to 1, `done` finished iterations are."""
        assert self.max_iter is not None
        return done / self.max_iter

    def is_spent(self, done: int) -> bool:
        """Whether no iteration is left after `done` of them."""
        assert self.max_iter is not None
        return done >= self.max_iter

    def advance(self, stops: bool) -> bool:
        """Counts an iteration; every process calls it after each. No device is waited for.

        Returns:
            Whether `stops` is set in any process.
        """
        return largest([stops])[0] > 0

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within the block the model is evaluated, not trained."""
        yield

    def report(self) -> dict[str, float]:
        """What lines of metrics say beside what is measured in steps."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes to go on."""
        return {}

    def load_state_dict(self, state: dict[str, Any], done: int) -> None:
        """Puts back what `state_dict` gave after `done` iterations."""

    def __str__(self) -> str:
        return f"{self.max_iter} iterations"


class TimeBudget(Budget):
    """Minutes, by the clock of rank 0, for loading, training and saving.

    What part of them is spent is put down after each iteration, so that the learning rate is a
    function of what a checkpoint holds. The last iteration is the one after which there is no time
    for another.

    Args:
        minutes: in which evaluations do not count,
        with_evaluation: unless this is set. Then as much as the longest evaluation took so far is
            kept for the last one, and there is one at half time if none came before.
    """

    def __init__(self, minutes: float, with_evaluation: bool = False) -> None:
        super().__init__(None, shortens_warm_up=True)
        self._limit = 60 * minutes
        self._with_evaluation = with_evaluation
        self._shares: list[float] = []
        self._least = 0.0  # no later share is less, unless the limit is changed
        # Of rank 0, and as all processes know them since the last iteration. Evaluations are those
        # that are in the seconds.
        self._seconds = self._evaluations = self._longest = self._slowest = 0.0
        self._trained = 0.0  # after the last iteration
        self._timed = 0  # iterations that the clock has seen
        self._since = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Until the last iteration ends."""
        return max(self._limit - self._kept - self._seconds, 0.0)

    @property
    def wants_evaluation(self) -> bool:  # type: ignore[override]
        return self._with_evaluation and not self._longest and self._seconds >= self._limit / 2

    @property
    def allows_evaluation(self) -> bool:  # type: ignore[override]
        return not self._with_evaluation or self._longest < self.seconds_left

    def share(self, done: int) -> float:
        return self._shares[done - 1] if done else 0.0

    def is_spent(self, done: int) -> bool:
        # The slowest, most often the first, says nothing about the next.
        others = self._timed - 1
        step = (self._in_steps(self._seconds) - self._slowest) / others if others > 0 else 0.0
        return self.seconds_left < step or self.seconds_left == 0

    def advance(self, stops: bool) -> bool:
        own = [0.0] * 4
        if is_main():
            seconds = time.monotonic() - self._since
            step = self._in_steps(seconds) - self._trained
            own = [seconds, self._evaluations, self._longest, max(step, self._slowest)]
        stopped, *agreed = largest([stops, *own])
        self._seconds, self._evaluations, self._longest, self._slowest = agreed
        self._timed += 1
        self._trained = self._in_steps(self._seconds)
        share = self._seconds / max(self._limit - self._kept, self._seconds, 1e-9)
        self._least = max(share, self._least)
        self._shares.append(self._least)
        return stopped > 0

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self._longest = max(self._longest, seconds)
        if not self._with_evaluation:
            self._since += seconds
            return
        self._evaluations += seconds
        if 2 * seconds > self._limit:
            logger.warning(
                "an evaluation takes %.2g minutes, more than half of SOLVER.MAX_MINUTES: the last "
                "one may end later", seconds / 60,
            )  # fmt: skip

    def report(self) -> dict[str, float]:
        return {"share": self._shares[-1], "eta_s": self.seconds_left}

    def state_dict(self) -> dict[str, Any]:
        return {
            "limit": self._limit,
            "seconds": self._seconds,
            "evaluations": self._evaluations,
            "longest": self._longest,
            "slowest": self._slowest,
            "timed": self._timed,
            "shares": torch.tensor(self._shares, dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Any], done: int) -> None:
        # A run that was counted in iterations before starts with all of its time.
        shares = state.get("shares", torch.zeros(done, dtype=torch.float64))
        self._shares = shares.tolist()
        # Of a run that is prolonged a smaller share is done than before.
        same = bool(self._shares) and state.get("limit") == self._limit
        self._least = self._shares[-1] if same else 0.0
        self._seconds = state.get("seconds", 0.0)
        self._evaluations = state.get("evaluations", 0.0)
        self._longest = state.get("longest", 0.0)
        self._slowest = state.get("slowest", 0.0)
        self._timed = state.get("timed", 0)
        self._trained = self._in_steps(self._seconds)
        self._since = time.monotonic() - self._seconds

    @property
    def _kept(self) -> float:
        """Seconds for the last evaluation."""
        return self._longest if self._with_evaluation else 0.0

    def _in_steps(self, seconds: float) -> float:
        """What of the counted seconds training took."""
        return seconds - self._evaluations

    def __str__(self) -> str:
        return f"{self._limit / 60:g} minutes, of which {self._seconds / 60:.1f} are spent"


def build_budget(cfg: CfgNode, images: int) -> Budget:
    """The length of a run by SOLVER.MAX_ITER, MAX_EPOCHS (of `images` images) or MAX_MINUTES."""
    solver = cfg.SOLVER
    if solver.MAX_MINUTES is not None:
        return TimeBudget(solver.MAX_MINUTES, solver.MINUTES_INCLUDE_TEST)
    if solver.MINUTES_INCLUDE_TEST:
        logger.warning("SOLVER.MINUTES_INCLUDE_TEST means nothing without SOLVER.MAX_MINUTES")
    if solver.MAX_EPOCHS is not None:
        return Budget(
            math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH), shortens_warm_up=True
        )
    return Budget(solver.MAX_ITER)
