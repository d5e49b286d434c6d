"""The best checkpoint of a run, by a metric, and when a run stops getting better."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import read_checkpoint, replace_file, save_checkpoint
from detlite.distributed import all_gather_objects, is_main
from detlite.engine.validation_loss import KIND as LOSS

from .ema import OF_AVERAGE

logger = logging.getLogger(__name__)

BEST_CHECKPOINT = "model_best.pth"


class BestCheckpoint:
    """Keeps a copy of the checkpoint whose evaluation gave the best value of a metric.

    That is the highest one, of a loss the lowest. Of a metric of the weights' average the file has
    that average as its weights, and nothing to go on training from.

    Args:
        metric: `<data set>/<kind>/<name>`, such as my_val/bbox/AP or my_val/loss/total, or without
            the data set that of the first; empty: nothing is kept.
        patience: after so many evaluations without a better value the run is to end; 0: never.

    Raises:
        ConfigError: patience without a metric.
    """

    def __init__(self, metric: str, patience: int = 0) -> None:
        if patience and not metric:
            raise ConfigError("SOLVER.PATIENCE needs a metric to look at: SOLVER.BEST_METRIC")
        self._path = metric.split("/") if metric else []
        self._patience = patience
        self._sign = -1 if LOSS in self._path[:-1] else 1
        self.value: float | None = None
        self.evaluations_since = 0

    @property
    def is_out_of_patience(self) -> bool:
        """Whether there were too many evaluations without a better value."""
        return 0 < self._patience <= self.evaluations_since

    def update(self, metrics: dict[str, dict[str, Any]], checkpoint: Path) -> None:
        """Looks at an evaluation of `checkpoint`; every process calls it.

        Args:
            metrics: by data set, kind and name on rank 0.

        Raises:
            ConfigError: there is no such metric.
        """
        if not self._path:
            return
        value = all_gather_objects(self._value(metrics) if is_main() else None)[0]
        if isinstance(value, ConfigError):
            raise value
        self.evaluations_since += 1
        # A metric without ground truth is None.
        if value is None:
            return
        if self.value is not None and self._sign * value <= self._sign * self.value:
            return
        self.value, self.evaluations_since = value, 0
        if is_main():
            best = checkpoint.with_name(BEST_CHECKPOINT)
            if len(self._path) > 2 and self._path[0].endswith(OF_AVERAGE):
                saved = read_checkpoint(checkpoint)
                average = saved.training["average"]["values"]
                save_checkpoint(replace(saved, path=best, model=average, training={}), last=False)
            else:
                replace_file(best, lambda temporary: shutil.copyfile(checkpoint, temporary))
            logger.info("%s is the best so far: %s %.4f", best, "/".join(self._path), value)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes to go on."""
        return {"value": self.value, "evaluations_since": self.evaluations_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        self.value, self.evaluations_since = state["value"], state["evaluations_since"]

    def _value(self, metrics: dict[str, dict[str, Any]]) -> float | ConfigError | None:
        """The metric; an error is returned, as the other processes must have it as well."""
        path = self._path if self._path[0] in metrics else [next(iter(metrics), ""), *self._path]
        found: Any = metrics
        for part in path:
            if not isinstance(found, dict) or part not in found:
                known = [
                    f"{name}/{kind}/{metric}"
                    for name, kinds in metrics.items()
                    for kind, values in kinds.items()
                    for metric, value in values.items()
                    if not isinstance(value, dict)
                ]
                return ConfigError(
                    f"SOLVER.BEST_METRIC {'/'.join(self._path)} is not among the metrics: "
                    f"{', '.join(known)}"
                )
            found = found[part]
        return found
