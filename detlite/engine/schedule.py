"""Schedule of a run: the iterations after which it logs, saves, evaluates and ends."""

from yacs.config import CfgNode

from detlite.distributed import any_process

from .duration import Duration


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
