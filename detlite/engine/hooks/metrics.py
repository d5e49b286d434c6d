"""Training metrics: averages over steps, metrics.jsonl, TensorBoard and progress."""

import json
import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detlite.distributed import all_gather_objects, is_main, reduce_mean
from detlite.engine.run_files import METRICS_FILE
from detlite.errors import NonFiniteLossError
from detlite.files.atomic_write import atomic_open, open_to_append

from .base import Hook

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 30
_BAR = "{percentage:3.0f}%|{bar}| {elapsed}{postfix}"


class Meters:
    """Averages losses and step times between two calls of `read`.

    Losses stay on their device until they are read or checked, so that no step waits for it. A
    non-finite loss is therefore reported later than it occurs.
    """

    def __init__(self, max_iter: int | None) -> None:
        self._max_iter = max_iter
        self._seconds: dict[str, float] = defaultdict(float)
        self._names: list[str] = []
        self._steps: list[tuple[int, list[Any], Tensor]] = []  # iteration, image ids, losses [L]
        self._all_steps, self._all_seconds = 0, 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the `with` block takes to a meter."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def update(self, iteration: int, losses: dict[str, Tensor], image_ids: list[Any]) -> None:
        """Add the scalar losses of one step."""
        self._names = list(losses)
        stacked = torch.stack([loss.detach().float() for loss in losses.values()])
        self._steps.append((iteration, image_ids, stacked))

    def check(self) -> list[list[float]]:
        """Return the losses of each step since the last `read`, in one transfer from the device.

        Every process calls it. NonFiniteLossError names the iteration and its images.
        """
        rows = torch.stack([losses for *_, losses in self._steps]).tolist() if self._steps else []
        problems = list(filter(None, all_gather_objects(self._first_problem(rows))))
        if not problems:
            return rows
        iteration = min(number for number, _ in problems)
        listed = "; ".join(text for number, text in problems if number == iteration)
        raise NonFiniteLossError(
            f"iteration {iteration}: the loss is not finite ({listed}). Look at these images, "
            "lower SOLVER.BASE_LR, increase SOLVER.WARMUP_ITERS, clip gradients "
            "(SOLVER.CLIP_GRAD_NORM) or set DTYPE bfloat16."
        )

    def _first_problem(self, rows: list[list[float]]) -> tuple[int, str] | None:
        """Return the first iteration with a non-finite loss, and its losses and images."""
        for row, (iteration, image_ids, _) in zip(rows, self._steps, strict=True):
            if not all(map(math.isfinite, row)):
                named = zip(self._names, row, strict=True)
                listed = ", ".join(f"{name} {value:.4g}" for name, value in named)
                return iteration, f"{listed} on images {image_ids}"
        return None

    def read(self, iteration: int) -> dict[str, float]:
        """Return means over all processes and the steps since the last call, after `check`.

        Includes `eta_s`, the estimated seconds left, if the length of the run is known, and on
        CUDA `max_memory_mib`, the peak memory of tensors.
        """
        rows, steps = self.check(), len(self._steps)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        totals = {"loss": sum(sums), **dict(zip(self._names, sums, strict=True)), **self._seconds}
        means = reduce_mean({name: total / steps for name, total in totals.items()})
        # Estimate from all steps so far, because step times vary with the image sizes.
        self._all_steps += steps
        self._all_seconds += means["time"] * steps
        if self._max_iter is not None:
            left = self._max_iter - iteration
            means["eta_s"] = left * self._all_seconds / self._all_steps
        device = self._steps[0][-1].device
        if device.type == "cuda":
            means["max_memory_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        self._seconds.clear()
        self._steps.clear()
        return means


class MetricsWriter(Hook):
    """Writes metrics to metrics.jsonl, TensorBoard and the log, on rank 0.

    A line of metrics.jsonl is `{"iteration": 20, "loss": 1.2, ..., "lr": 0.02, "time": 0.5,
    "data_time": 0.01, "eta_s": 60.0}` in training, with "share" (the fraction of the time that is
    used) under SOLVER.MAX_MINUTES. After an evaluation it is
    `{"iteration": 500, "evaluation": {"my_val": {"bbox": ...}}}`.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir

    def before_train(self) -> None:
        if not is_main():
            return
        # Imported here because it takes seconds.
        from torch.utils.tensorboard import SummaryWriter

        start = self.trainer.iteration
        path = self._output_dir / METRICS_FILE
        if path.exists():
            _drop_repeated(path, start, self.trainer.schedule.first_evaluation_due())
        self._file = open_to_append(path)
        self._events = SummaryWriter(str(self._output_dir), purge_step=start + 1 if start else None)

    def after_log(self, metrics: dict[str, float]) -> None:
        self._write(metrics, {f"training/{name}": value for name, value in metrics.items()})
        logger.info(_log_line(self.trainer.iteration, metrics))

    def after_evaluation(self, metrics: dict[str, dict[str, Any]]) -> None:
        numbers = {n: value for n, value in flatten_metrics(metrics).items() if value is not None}
        self._write({"evaluation": metrics}, numbers)

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


class Progress(Hook):
    """Logs the first step, later steps when nothing was logged for half a minute, and the total.

    On a busy machine, SOLVER.LOG_PERIOD steps can take many minutes. The additional lines have no
    losses, because reading them would wait for the device. On a terminal, a bar shows every step.
    """

    def before_train(self) -> None:
        self._start, self._last = time.monotonic(), -math.inf
        self._first, self._bar, self._terminal = self.trainer.iteration, None, ExitStack()
        if is_main() and sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._terminal.enter_context(logging_redirect_tqdm())  # lines are above the bar
            self._bar = tqdm(total=1.0, leave=False, bar_format=_BAR)
            self._terminal.callback(self._bar.close)

    def close(self) -> None:
        self._terminal.close()

    def after_step(self, losses: dict[str, Tensor]) -> None:
        now, iteration = time.monotonic(), self.trainer.iteration
        seconds = (now - self._start) / (iteration - self._first)
        fraction = self.trainer.duration.fraction(iteration)
        if self._bar is not None:
            self._bar.set_postfix_str(f"step {iteration}, {seconds:.2f} s per step", refresh=False)
            self._bar.update(fraction - self._bar.n)
        outlook = self.trainer.duration.outlook(iteration)
        solver = self.trainer.cfg.SOLVER
        if iteration % solver.LOG_PERIOD == 0 or now - self._last < _SILENCE_SECONDS:
            return
        self._last = now
        speed = f"{seconds:.3f} s per step of {solver.IMS_PER_BATCH} images"
        logger.info("iteration %d  %s%s", iteration, speed, outlook)

    def after_log(self, metrics: dict[str, float]) -> None:
        self._last = time.monotonic()

    def after_train(self) -> None:
        iteration, images = self.trainer.iteration, len(self.trainer.train_set)
        seen = iteration * self.trainer.cfg.SOLVER.IMS_PER_BATCH
        logger.info(
            "trained %d iterations, %.1f epochs of %d images; this process took %.1f minutes",
            iteration, seen / images, images, (time.monotonic() - self._start) / 60,
        )  # fmt: skip
