"""Time every operator and its reference, interleaved."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.clock import Clock, time_call

from .boxes import match_cases, nms_cases
from .case import Case
from .masks import crop_cases, keypoint_cases, paste_cases
from .roi import pool_cases, pyramid_cases

# Functions that yield cases with inputs on a device ("cpu" or "cuda").
GROUPS = (
    crop_cases,
    keypoint_cases,
    paste_cases,
    match_cases,
    nms_cases,
    pool_cases,
    pyramid_cases,
)


@dataclass(frozen=True)
class OperatorRow:
    """Result of one case: median times in milliseconds, rates in 10^9 bytes per second."""

    case: str
    device: str
    dtype: str
    detlite_ms: float
    torchvision_ms: float
    ratio: float
    gb_per_s: float | None
    copy_gb_per_s: float | None


def benchmark_ops(
    device: str, only: Sequence[str] = (), seconds: float = 3.0, clock: Clock = time.perf_counter
) -> Iterator[OperatorRow]:
    """Measure all cases, or only cases whose name contains one of `only`.

    Args:
        device: "cpu" or "cuda".
        only: parts of names; empty for all cases.
        seconds: approximate time for each case.
        clock: source of times.
    """
    for group in GROUPS:
        for case in select_cases(group(device), only):
            yield measure(case, device, seconds, clock)


def select_cases(cases: Iterator[Case], only: Sequence[str]) -> Iterator[Case]:
    """Seed the random inputs of a group, and yield the cases whose name contains one of `only`."""
    torch.manual_seed(0)
    return (case for case in cases if not only or any(part in case.name for part in only))


def measure(case: Case, device: str, seconds: float, clock: Clock) -> OperatorRow:
    """Time both calls for about `seconds`, in at least five turns.

    A turn consists of one call of the reference, and of as many calls of detlite (up to eight) as
    take the same time, because short times vary more.
    """

    def milliseconds(run: Callable[[], object]) -> float:
        return 1e3 * time_call(run, device, clock)

    for run in (case.run, case.reference):
        milliseconds(run)
    warm, reference_warm = milliseconds(case.run), milliseconds(case.reference)
    calls = min(max(int(reference_warm / warm), 1), 8)
    times: list[float] = []
    reference_times: list[float] = []
    while len(reference_times) < 5 or (
        sum(times) + sum(reference_times) < 1e3 * seconds and len(reference_times) < 1000
    ):
        times += [milliseconds(case.run) for _ in range(calls)]
        reference_times.append(milliseconds(case.reference))
    ms, reference_ms = statistics.median(times), statistics.median(reference_times)
    return OperatorRow(
        case.name,
        device,
        case.dtype,
        ms,
        reference_ms,
        reference_ms / ms,
        case.traffic / ms / 1e6 if case.traffic else None,
        _copy_rate(case.traffic, device, clock) if case.traffic else None,
    )


def _copy_rate(traffic: int, device: str, clock: Clock) -> float:
    """Return the 10^9 bytes per second that a copy into allocated memory reads and writes."""
    source = torch.ones(traffic // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times = [time_call(lambda: target.copy_(source), device, clock) for _ in range(7)]
    return traffic / statistics.median(times) / 1e9
