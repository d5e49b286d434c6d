"""Act on evaluations: keep the best checkpoint, stop early, store the score threshold."""

import logging
import operator
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

from detlite.checkpoint.files import read_checkpoint, save_checkpoint
from detlite.config import ConfigError, changed
from detlite.distributed import all_gather_objects, is_main
from detlite.engine.evaluate import EMA_SUFFIX, LOSS, measure
from detlite.engine.run_files import AVERAGE_CHECKPOINT, BEST_CHECKPOINT, FINAL_CHECKPOINT
from detlite.engine.trainer import Hook, Trainer
from detlite.evaluation.evaluators import predicted_kinds
from detlite.evaluation.results import Results
from detlite.files.atomic_write import atomic_path

from .ema import find_average
from .metrics import flatten_metrics

logger = logging.getLogger(__name__)


class BestCheckpoint(Hook):
    """Keeps a copy of the checkpoint with the best value of a metric, model_best.pth.

    The best value is the highest one, or the lowest one of a `MetricValue` that says so, such as a
    loss. For a metric of the averaged weights, the file contains the averaged weights, and a run
    cannot resume from it.

    Args:
        metric: SOLVER.BEST_METRIC, `<dataset>/<kind>/<name>`, such as my_val/bbox/AP or
            my_val/loss/total. Without the dataset, the first one counts.
        patience: number of evaluations without a better value after which the run ends; 0: never.
    """

    def __init__(self, metric: str, patience: int = 0) -> None:
        self._path = metric.split("/") if metric else []
        self._patience = patience
        self.value: float | None = None
        self.evaluations_since = 0

    def before_train(self) -> None:
        if self._path and self.trainer.test_sets:
            self._check_metric()
        self._finish_without_patience()

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        if self._path:
            self._compare(metrics)
        if not self.trainer.schedule.is_last:
            self._finish_without_patience()

    def _compare(self, metrics: dict[str, dict[str, Any]]) -> None:
        """Compare an evaluation with the best one, and keep its checkpoint if it is better."""
        name, value = "/".join(self._path), self._value(metrics)
        if value is None:
            logger.warning(
                "SOLVER.BEST_METRIC %s is undefined, because the test set has no such objects: "
                "this evaluation does not count", name
            )  # fmt: skip
            return
        self.evaluations_since += 1
        sign = -1 if getattr(value, "lower_is_better", False) else 1
        if self.value is not None and sign * value <= sign * self.value:
            return
        self.value, self.evaluations_since = float(value), 0
        if is_main():
            checkpoint = self.trainer.checkpoint
            best = checkpoint.with_name(BEST_CHECKPOINT)
            if len(self._path) > 2 and self._path[0].endswith(EMA_SUFFIX):
                average = find_average(self.trainer.hooks)
                assert average is not None  # it has been evaluated
                changes: dict[str, Any] = {"path": best, "model": average.values, "training": {}}
                save_checkpoint(replace(read_checkpoint(checkpoint), **changes), last=False)
            else:
                with atomic_path(best) as temporary:
                    shutil.copyfile(checkpoint, temporary)
            logger.info("new best checkpoint %s: %s %.4f", best, name, value)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "evaluations_since": self.evaluations_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.evaluations_since = state["value"], state["evaluations_since"]

    def _finish_without_patience(self) -> None:
        if 0 < self._patience <= self.evaluations_since:
            logger.info(
                "SOLVER.PATIENCE: the last %d evaluations had no better %s than %.4f, so the "
                "run ends early", self.evaluations_since, "/".join(self._path), self.value
            )  # fmt: skip
            self.trainer.finish()

    def _check_metric(self) -> None:
        """Report a metric that evaluations will not have: evaluate no detections.

        ConfigError if it does not exist and no hook of the user may add it; a warning if it is
        undefined.
        """
        cfg, suffix = self.trainer.cfg, EMA_SUFFIX if self.trainer.cfg.SOLVER.EMA_DECAY else ""
        if cfg.TEST.LOSS and LOSS in self._path[:-1]:
            return  # the names of the losses are those of the model
        nothing = Results.from_coco([], predicted_kinds(cfg))
        metrics = {}
        for dataset in self.trainer.test_sets if is_main() else ():
            metrics[dataset.name] = metrics[dataset.name + suffix] = measure(cfg, dataset, nothing)
        name = "/".join(self._path)
        try:
            value = self._value(metrics)
        except ConfigError:
            hooks = [type(hook).__module__ for hook in self.trainer.hooks]
            if all(module.startswith("detlite.") for module in hooks):
                raise
            logger.info("SOLVER.BEST_METRIC %s is no metric of an evaluator, but of a hook", name)
            return
        if value is None:
            logger.warning(
                "SOLVER.BEST_METRIC %s is undefined without detections. If the test set has no "
                "such objects, no checkpoint will be the best: choose another metric", name
            )  # fmt: skip

    def _value(self, metrics: dict[str, dict[str, Any]]) -> float | None:
        """Return the metric in every process; ConfigError if rank 0's `metrics` lack it."""
        path = self._path if self._path[0] in metrics else [next(iter(metrics), ""), *self._path]
        value: Any = None
        if is_main():
            known = False
            with suppress(KeyError, TypeError):
                value = reduce(operator.getitem, path, metrics)
                known = value is None or isinstance(value, int | float)
            if not known:
                value = ConfigError(
                    f"SOLVER.BEST_METRIC {'/'.join(self._path)} is not among the metrics: "
                    f"{', '.join(flatten_metrics(metrics))}"
                )
        value = all_gather_objects(value)[0]
        if isinstance(value, ConfigError):
            raise value
        return value


def store_score_threshold(run: Trainer, metrics: dict[str, dict[str, Any]]) -> None:
    """Write TEST.SCORE_THRESHOLD into the config of the evaluated checkpoint, on rank 0.

    It is the threshold of the highest F1 on the first test set, of masks if the model has them.
    """
    files = {"": run.checkpoint}
    if run.checkpoint.name == FINAL_CHECKPOINT:
        files[EMA_SUFFIX] = run.checkpoint.with_name(AVERAGE_CHECKPOINT)
    for suffix, path in files.items():
        score = measured_threshold(metrics.get(run.test_sets[0].name + suffix, {}))
        if score and path.exists():
            cfg = changed(run.cfg, {"TEST.SCORE_THRESHOLD": score})
            save_checkpoint(replace(read_checkpoint(path), config=cfg.dump()), last=False)


def measured_threshold(kinds: dict[str, Any]) -> float:
    """Return the score of the best F1 in the metrics of a dataset; 0 if there is none."""
    best = kinds.get("segm", kinds.get("bbox", {})).get("best_f1", {})
    return round(float(best.get("score", 0.0)), 4)
