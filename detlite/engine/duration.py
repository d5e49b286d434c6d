"""Duration of a run: a number of iterations or epochs, or minutes."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from yacs.config import CfgNode

from detlite.distributed import max_over_processes

logger = logging.getLogger(__name__)


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


def build_duration(cfg: CfgNode, images: int) -> Duration:
    """Build the duration of a run on `images` from SOLVER.MAX_ITER, MAX_EPOCHS or MAX_MINUTES."""
    solver = cfg.SOLVER
    if solver.MAX_MINUTES is not None:
        from .time_limit import TimeLimit

        return TimeLimit(solver.MAX_MINUTES, solver.MINUTES_INCLUDE_TEST)
    if solver.MINUTES_INCLUDE_TEST:
        logger.warning("SOLVER.MINUTES_INCLUDE_TEST has no effect without SOLVER.MAX_MINUTES")
    if solver.MAX_EPOCHS is not None:
        iterations = math.ceil(solver.MAX_EPOCHS * images / solver.IMS_PER_BATCH)
        return Duration(iterations, shortens_warmup=True)
    return Duration(solver.MAX_ITER)
