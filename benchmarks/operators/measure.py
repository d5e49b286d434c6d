"""Times a case: detlite's call and the reference's in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .boxes import match_cases, nms_cases
from .case import Case, Clock
from .masks import crop_cases, keypoint_cases, paste_cases
from .norms import norm_cases
from .roi import pool_cases, pyramid_cases

# Each makes its inputs on a device ("cpu" or "cuda") and yields the cases of them.
GROUPS = (
    crop_cases,
    keypoint_cases,
    paste_cases,
    match_cases,
    nms_cases,
    norm_cases,
    pool_cases,
    pyramid_cases,
)


@dataclass(frozen=True)
class Row:
    """One result. Times are medians in milliseconds, rates in 10^9 bytes a second."""

    case: str
    device: str
    dtype: str
    detlite_ms: float
    torchvision_ms: float
    ratio: float
    gb_per_s: float | None
    copy_gb_per_s: float | None


def _milliseconds(run: Callable[[], object], device: str, clock: Clock) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    result = run()
    if device == "cuda":
        torch.cuda.synchronize()
    stop = clock()
    del result  # giving back memory is not part of the call
    return 1e3 * (stop - start)


def _copy_rate(traffic: int, device: str, clock: Clock) -> float:
    """Bytes a second, read and written, of a plain copy into memory that is there already."""
    source = torch.ones(traffic // 2, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    times = [_milliseconds(lambda: target.copy_(source), device, clock) for _ in range(7)]
    return traffic / statistics.median(times) / 1e6


def measure(case: Case, device: str, seconds: float, clock: Clock) -> Row:
    """Runs both in turn for about so many seconds, five turns at least.

    A turn is one call of torchvision's and up to eight of detlite's, as long as those together take
    less: of the shorter times more are needed for a steady median.
    """
    for run in (case.run, case.reference):
        _milliseconds(run, device, clock)
    warm = [_milliseconds(run, device, clock) for run in (case.run, case.reference)]
    calls = min(max(int(warm[1] / warm[0]), 1), 8)
    ours: list[float] = []
    theirs: list[float] = []
    while len(theirs) < 5 or (sum(ours) + sum(theirs) < 1e3 * seconds and len(theirs) < 1000):
        ours += [_milliseconds(case.run, device, clock) for _ in range(calls)]
        theirs.append(_milliseconds(case.reference, device, clock))
    ms, reference_ms = statistics.median(ours), statistics.median(theirs)
    return Row(
        case.name,
        device,
        case.dtype,
        ms,
        reference_ms,
        reference_ms / ms,
        case.traffic / ms / 1e6 if case.traffic else None,
        _copy_rate(case.traffic, device, clock) if case.traffic else None,
    )


def benchmark_ops(
    device: str,
    only: Sequence[str] = (),
    seconds: float = 3.0,
    clock: Clock = time.perf_counter,
) -> Iterator[Row]:
    """Measures every case, or those whose name contains one of `only`.

    Args:
        device: "cpu" or "cuda".
        only: parts of names; all cases where empty.
        seconds: about so long for each case.
        clock: what times are read from.
    """
    for group in GROUPS:
        torch.manual_seed(0)
        for case in group(device):
            if not only or any(part in case.name for part in only):
                yield measure(case, device, seconds, clock)
