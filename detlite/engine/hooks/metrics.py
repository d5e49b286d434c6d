"""Write training metrics to metrics.jsonl, TensorBoard and the log, and show progress."""

import json
import logging
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from detlite.distributed import is_main
from detlite.engine.run_files import METRICS_FILE
from detlite.engine.trainer import Hook
from detlite.files.atomic_write import atomic_open, open_to_append

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 30


class MetricsWriter(Hook):
    """Writes metrics to metrics.jsonl, TensorBoard and the log, on rank 0.

    A line of metrics.jsonl is `{"iteration": 20, "loss": 1.2, ..., "lr": 0.02, "time": 0.5,
    "data_time": 0.01, "eta_s": 60.0}` in training, with "share" (the fraction of the time that is
    used) under SOLVER.MAX_MINUTES. After an evaluation it is
    `{"iteration": 500, "evaluation": {"my_val": {"bbox": ...}}}`.

    On a busy machine, SOLVER.LOG_PERIOD steps can take many minutes. Therefore it also logs the
    first step, and later steps when nothing was logged for half a minute. These lines have no
    losses, because reading them would wait for the device.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir

    def before_train(self) -> None:
        self._began, self._last = time.monotonic(), -math.inf
        self._first = self.trainer.iteration
        if not is_main():
            return
        # Imported here because it takes seconds.
        from torch.utils.tensorboard import SummaryWriter

        start, path = self._first, self._output_dir / METRICS_FILE
        if path.exists():
            _drop_repeated(path, start, self.trainer.schedule.first_evaluation_due())
        self._file = open_to_append(path)
        self._events = SummaryWriter(str(self._output_dir), purge_step=start + 1 if start else None)

    def after_step(self, losses: dict[str, Tensor]) -> None:
        now, iteration = time.monotonic(), self.trainer.iteration
        seconds = (now - self._began) / (iteration - self._first)
        outlook = self.trainer.schedule.outlook(iteration)
        solver = self.trainer.cfg.SOLVER
        if iteration % solver.LOG_PERIOD == 0 or now - self._last < _SILENCE_SECONDS:
            return
        self._last = now
        speed = f"{seconds:.3f} s per step of {solver.IMS_PER_BATCH} images"
        logger.info("iteration %d  %s%s", iteration, speed, outlook)

    def after_log(self, metrics: dict[str, float]) -> None:
        self._last = time.monotonic()
        self._write(metrics, {f"training/{name}": value for name, value in metrics.items()})
        logger.info(_log_line(self.trainer.iteration, metrics))

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        numbers = {n: value for n, value in flatten_metrics(metrics).items() if value is not None}
        self._write({"evaluation": metrics}, numbers)

    def after_train(self) -> None:
        iteration, images = self.trainer.iteration, len(self.trainer.train_set)
        seen = iteration * self.trainer.cfg.SOLVER.IMS_PER_BATCH
        logger.info(
            "trained %d iterations, %.1f epochs of %d images; this process took %.1f minutes",
            iteration, seen / images, images, (time.monotonic() - self._began) / 60,
        )  # fmt: skip

    def close(self) -> None:
        if is_main():
            self._file.close()
            self._events.close()

    def _write(self, row: dict[str, Any], scalars: dict[str, float]) -> None:
        if not is_main():
            return
        iteration = self.trainer.iteration
        line = json.dumps({"iteration": iteration, **row}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, value, iteration)
        self._events.flush()


def flatten_metrics(metrics: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Return the metrics of an evaluation by "<dataset>/<kind>/<name>"; None if undefined."""
    return {
        f"{name}/{kind}/{metric}": value
        for name, kinds in metrics.items()
        for kind, values in kinds.items()
        for metric, value in values.items()
        if value is None or isinstance(value, int | float)
    }


def _log_line(iteration: int, metrics: dict[str, float]) -> str:
    losses = [name.removeprefix("loss_") for name in metrics if name.startswith("loss_")]
    listed = ", ".join(f"{name} {metrics[f'loss_{name}']:.3f}" for name in losses)
    parts = [
        f"iteration {iteration}",
        f"loss {metrics['loss']:.3f} ({listed})",
        f"lr {metrics['lr']:.2g}",
        f"{metrics['time']:.3f} s (data {metrics['data_time']:.3f})",
        f"eta {timedelta(seconds=round(metrics['eta_s']))}",
    ]
    if "max_memory_mib" in metrics:
        parts.append(f"memory {metrics['max_memory_mib']:.0f} MiB")
    return "  ".join(parts)


def _drop_repeated(path: Path, start: int, repeats_evaluation: bool) -> None:
    """Remove damaged lines, and lines that a run resumed after `start` iterations writes again."""
    kept, damaged = [], 0
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            repeated = repeats_evaluation and "evaluation" in row
            if row["iteration"] < start + (not repeated):
                kept.append(line + b"\n")
        except (ValueError, TypeError, KeyError, RecursionError):
            damaged += 1
    if damaged:
        logger.warning("%s: removed %d damaged lines", path, damaged)
    with atomic_open(path, "wb") as file:
        file.write(b"".join(kept))
