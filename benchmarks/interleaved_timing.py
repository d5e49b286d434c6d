"""Interleaved timing of several libraries, so that changes of the machine affect all."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .clock import Clock, time_call


@dataclass(frozen=True)
class StepRow:
    """Result of one library in one mode. Times are medians.

    Attributes:
        library: "detlite", "torchvision" or "detectron2".
        mode: data type, and how the model is optimized.
        seconds: time of a call.
        ratio: torchvision's time with the same data type over `seconds`; None if not measured.
        gflop: 10^9 operations of a call, see `count_flops`.
        peak_fraction: operations per second over the highest rate of `torch.mm`.
        memory_mb: see `peak_memory`.
        phases: milliseconds of each phase of a call.
    """

    library: str
    mode: str
    seconds: float
    ratio: float | None
    gflop: float
    peak_fraction: float | None
    memory_mb: float | None = None
    phases: dict[str, float] = field(default_factory=dict)


def interleaved_medians(
    runs: Mapping[str, Callable[[], object]], turns: int, device: str, clock: Clock
) -> dict[str, float]:
    """Return the median seconds of each call over `turns`, after a warm-up turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns + 1):
        for name, run in runs.items():
            times[name].append(time_call(run, device, clock))
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
