"""Whole calls of detlite and of torchvision, measured in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .operators.case import Clock
from .roofline import synchronize


@dataclass(frozen=True)
class StepRow:
    """One way of doing the same. Times are medians.

    Attributes:
        library: "detlite" or "torchvision".
        way: its arithmetic, and what else is particular.
        seconds: of a call.
        ratio: of torchvision's in the same arithmetic; None where that was not measured.
        gflop: 10^9 operations of a call, see `peak.flops`.
        peak_share: those a second, over what `torch.mm` reaches at best in this arithmetic.
        memory_mb: see `peak.peak_memory`.
        phases: milliseconds of each phase of a call.
    """

    library: str
    way: str
    seconds: float
    ratio: float | None
    gflop: float
    peak_share: float | None
    memory_mb: float | None = None
    phases: dict[str, float] = field(default_factory=dict)


def in_turn(
    runs: Mapping[str, Callable[[], object]], turns: int, device: str, clock: Clock
) -> dict[str, float]:
    """The median seconds of each call, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            synchronize(device)
            start = clock()
            result = run()
            synchronize(device)
            if turn:
                times[name].append(clock() - start)
            del result  # giving back memory is not part of the call
    return {name: statistics.median(own) for name, own in times.items()}
