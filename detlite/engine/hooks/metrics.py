"""What a run reports: log.txt, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detlite.config import ConfigError
from detlite.distributed import all_gather_objects, is_main, reduce_mean

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"


@contextmanager
def logging_to(output_dir: Path) -> Iterator[None]:
    """Within it, what is logged and warned of goes to `output_dir`/log.txt, appending, as well.

    Handlers that the root logger has get it too; where there are none, as in a command, the console
    does. The level is INFO. Ranks other than the first log warnings alone, and to no file. After it
    all is as before.

    Raises:
        ConfigError: OUTPUT_DIR cannot be made or written to.
    """
    root = logging.getLogger()
    level, showing = root.level, warnings.showwarning
    handlers: list[logging.Handler] = []
    if not root.handlers:
        handlers.append(logging.StreamHandler(sys.stdout))
    if is_main():
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
            handlers.append(logging.FileHandler(output_dir / "log.txt"))
        except OSError as error:
            raise ConfigError(
                f"OUTPUT_DIR {output_dir}: cannot be written to ({error.strerror})"
            ) from error
    form = logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%m-%d %H:%M:%S")
    for handler in handlers:
        handler.setFormatter(form)
        root.addHandler(handler)
    root.setLevel(logging.INFO if is_main() else logging.WARNING)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        if warnings.showwarning is not showing:  # the caller had not captured them
            logging.captureWarnings(False)
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


class NonFiniteLossError(RuntimeError):
    """A loss became infinite or NaN; nothing was saved after it."""


class Meters:
    """Means of losses, and the time that a step takes, since they were last read.

    Losses are added up where they are: no step waits for a device. One that is not finite is
    noticed there, and reported when they are read.
    """

    def __init__(self, max_iter: int | None, keep: Callable[[int], Path] | None = None) -> None:
        """`keep` writes the batch of an iteration into a file, for the message of an error.

        Without `max_iter` no end is estimated.
        """
        self._max_iter, self._keep = max_iter, keep
        self._seconds: dict[str, float] = defaultdict(float)
        self._names: list[str] = []
        self._steps: list[tuple[int, list[Any], Tensor]] = []  # iteration, image ids, losses [L]
        self._all_steps, self._all_seconds = 0, 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the seconds that the `with` block takes."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def update(self, iteration: int, losses: dict[str, Tensor], image_ids: list[Any]) -> None:
        """Adds the scalar losses of one step on some images."""
        self._names = list(losses)
        stacked = torch.stack([loss.detach().float() for loss in losses.values()])
        self._steps.append((iteration, image_ids, stacked))

    def check(self) -> list[list[float]]:
        """The losses of each step since the last `read`, in one transfer from the device.

        Every process calls it at the same time.

        Raises:
            NonFiniteLossError: one is infinite or NaN in any process; the message names iteration
                and images, and the file of the batch.
        """
        rows = torch.stack([losses for *_, losses in self._steps]).tolist() if self._steps else []
        found = all_gather_objects(self._first_problem(rows))
        if not any(found):
            return rows
        # What is later only follows from it.
        iteration = min(number for number, _ in filter(None, found))
        listed = "; ".join(text for number, text in filter(None, found) if number == iteration)
        kept = f" (kept in {self._keep(iteration)}: `detlite replay`)" if self._keep else ""
        raise NonFiniteLossError(
            f"iteration {iteration}: the loss is not finite ({listed}){kept}. Lower "
            "SOLVER.BASE_LR, warm up longer (SOLVER.WARMUP_ITERS), clip gradients "
            "(SOLVER.CLIP_GRAD_NORM) or use DTYPE bfloat16"
        )

    def _first_problem(self, rows: list[list[float]]) -> tuple[int, str] | None:
        """The first iteration with a loss that is not finite, and its losses and images."""
        for row, (iteration, image_ids, _) in zip(rows, self._steps, strict=True):
            if not all(map(math.isfinite, row)):
                named = zip(self._names, row, strict=True)
                listed = ", ".join(f"{name} {value:.4g}" for name, value in named)
                return iteration, f"{listed} on images {image_ids}"
        return None

    def read(self, iteration: int) -> dict[str, float]:
        """The means over the steps since the last call, which `check` checks, and all processes.

        With `eta_s` and, on a GPU, `max_memory_mib`, the most that tensors took so far. Nothing
        where all steps were skipped.
        """
        rows, steps = self.check(), len(self._steps)
        if not steps:
            return {}
        sums = [sum(column) for column in zip(*rows, strict=True)]
        totals = {"loss": sum(sums), **dict(zip(self._names, sums, strict=True)), **self._seconds}
        means = reduce_mean({name: total / steps for name, total in totals.items()})
        # The estimate uses every step so far: single windows differ by their image sizes.
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


class MetricsWriter:
    """Appends metrics to metrics.jsonl and TensorBoard's event file; silent on other ranks.

    Lines are `{"iteration": 20, "loss": 1.2, ..., "lr": 0.02, "time": 0.5, "data_time": 0.01,
    "eta_s": 60.0}` in training and `{"iteration": 500, "evaluation": {"my_val": {"bbox": ...}}}`
    after an evaluation. Under SOLVER.MAX_MINUTES those of training also have the "share" of them
    that is spent.

    Args:
        output_dir: an existing folder.
        start: iterations that are done; what an interrupted run wrote about later ones goes.
        evaluates_again: what it wrote about an evaluation after `start` goes as well.
    """

    def __init__(self, output_dir: Path, start: int, evaluates_again: bool = False) -> None:
        self._file = None
        if not is_main():
            return
        # Heavy to import, and only needed here.
        from torch.utils.tensorboard import SummaryWriter

        path = output_dir / METRICS_FILE
        if path.exists():
            _drop_later(path, start, evaluates_again)
        self._file = path.open("a")
        self._events = SummaryWriter(str(output_dir), purge_step=start + 1 if start else None)

    def training(self, iteration: int, means: dict[str, float], lr: dict[str, float]) -> None:
        """Writes and logs the metrics of a training step; those that were all skipped have none."""
        if not means:
            return
        values = means | lr
        self._write(iteration, values, {f"training/{name}": v for name, v in values.items()})
        logger.info(_line(iteration, values))

    def evaluation(self, iteration: int, metrics: dict[str, dict[str, Any]]) -> None:
        """Writes metrics by data set, kind (bbox, segm) and name."""
        scalars = {
            f"{name}/{kind}/{metric}": value
            for name, kinds in metrics.items()
            for kind, values in kinds.items()
            for metric, value in values.items()
            if isinstance(value, float)
        }
        self._write(iteration, {"evaluation": metrics}, scalars)

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._file is not None:
            self._file.close()
            self._events.close()

    def _write(self, iteration: int, row: dict[str, Any], scalars: dict[str, float]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps({"iteration": iteration, **row}, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, value, iteration)
        self._events.flush()


def _line(iteration: int, values: dict[str, float]) -> str:
    losses = ", ".join(
        f"{name.removeprefix('loss_')} {value:.3f}"
        for name, value in values.items()
        if name.startswith("loss_")
    )
    parts = [
        f"iteration {iteration}",
        f"loss {values['loss']:.3f} ({losses})",
        f"lr {values['lr']:.2g}",
        f"{values['time']:.3f} s (data {values['data_time']:.3f})",
        f"eta {timedelta(seconds=round(values['eta_s']))}",
    ]
    if "max_memory_mib" in values:
        parts.append(f"memory {values['max_memory_mib']:.0f} MiB")
    return "  ".join(parts)


def _drop_later(path: Path, start: int, evaluates_again: bool) -> None:
    """Keeps the lines about what is not done again; what a crash or a disk damaged goes too."""
    kept, damaged = [], 0
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
            repeated = evaluates_again and "evaluation" in row
            if row["iteration"] < start + (not repeated):
                kept.append(line + b"\n")
        except (ValueError, TypeError, KeyError, RecursionError):
            damaged += 1
    if damaged:
        logger.warning("%s: dropped %d lines that are damaged", path, damaged)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(b"".join(kept))
    temporary.replace(path)
