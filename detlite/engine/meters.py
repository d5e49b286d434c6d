"""Averages of losses and step times, without waiting for the device in each step."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from detlite.distributed import all_gather_objects, reduce_mean
from detlite.errors import NonFiniteLossError


class Meters:
    """Averages losses and step times between two calls of `read`.

    Losses stay on their device until they are read or checked, so that no step waits for it. A
    non-finite loss is therefore reported later than it occurs.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._names: list[str] = []
        self._steps: list[tuple[int, list[Any], Tensor]] = []  # iteration, image ids, losses [L]

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
            "(SOLVER.CLIP_GRAD_NORM) or set DTYPE bfloat16. Then resume the run from its last "
            "checkpoint (--resume), or start it again if it has none"
        )

    def _first_problem(self, rows: list[list[float]]) -> tuple[int, str] | None:
        """Return the first iteration with a non-finite loss, and its losses and images."""
        for row, (iteration, image_ids, _) in zip(rows, self._steps, strict=True):
            if not all(map(math.isfinite, row)):
                named = zip(self._names, row, strict=True)
                listed = ", ".join(f"{name} {value:.4g}" for name, value in named)
                return iteration, f"{listed} on images {image_ids}"
        return None

    def read(self) -> dict[str, float]:
        """Return means over all processes and the steps since the last call, after `check`.

        On CUDA, they include `max_memory_mib`, the peak memory of tensors.
        """
        rows, steps = self.check(), len(self._steps)
        sums = [sum(column) for column in zip(*rows, strict=True)]
        totals = {"loss": sum(sums), **dict(zip(self._names, sums, strict=True)), **self._seconds}
        means = reduce_mean({name: total / steps for name, total in totals.items()})
        device = self._steps[0][-1].device
        if device.type == "cuda":
            means["max_memory_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        self._seconds.clear()
        self._steps.clear()
        return means
