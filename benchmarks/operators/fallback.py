"""Time the fallback operators against the compiled ones, both on the CPU."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.clock import Clock, time_call
from detlite.ops.dispatch import use_fallback_ops

from .boxes import match_cases, nms_cases
from .masks import crop_cases, keypoint_cases
from .measure import select_cases
from .roi import pool_cases, pyramid_cases

GROUPS = (nms_cases, match_cases, pool_cases, pyramid_cases, crop_cases, keypoint_cases)


@dataclass(frozen=True)
class FallbackRow:
    """Result of one case: medians in milliseconds, and the fallback's time over the kernel's."""

    case: str
    dtype: str
    kernel_ms: float
    fallback_ms: float
    ratio: float


def benchmark_fallback(
    only: Sequence[str] = (), seconds: float = 3.0, clock: Clock = time.perf_counter
) -> Iterator[FallbackRow]:
    """Measure the cases of `benchmark_ops` that have a fallback.

    Args:
        only: parts of names; empty for all cases.
        seconds: approximate time for each case; there are at least three timed turns.
        clock: source of times.
    """
    for group in GROUPS:
        for case in select_cases(group("cpu"), only):
            kernel: list[float] = []
            fallback: list[float] = []
            while len(fallback) < 4 or sum(kernel) + sum(fallback) < seconds:
                kernel.append(time_call(case.run, "cpu", clock))
                with use_fallback_ops():
                    fallback.append(time_call(case.run, "cpu", clock))
            # The first turn warms up.
            kernel_ms, fallback_ms = (1e3 * statistics.median(t[1:]) for t in (kernel, fallback))
            yield FallbackRow(
                case.name, case.dtype, kernel_ms, fallback_ms, fallback_ms / kernel_ms
            )
