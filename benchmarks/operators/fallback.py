"""The operators as devices without kernels have them, beside the kernels, both on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from detlite.ops.fallback import instead_of_kernels

from .boxes import match_cases, nms_cases
from .case import Clock
from .masks import crop_cases, keypoint_cases
from .roi import pool_cases, pyramid_cases

GROUPS = (nms_cases, match_cases, pool_cases, pyramid_cases, crop_cases, keypoint_cases)


@dataclass(frozen=True)
class PlainRow:
    """One result: medians in milliseconds, and how many times the kernel's the plain one's is."""

    case: str
    dtype: str
    kernel_ms: float
    plain_ms: float
    ratio: float


def benchmark_plain(
    only: Sequence[str] = (), seconds: float = 3.0, clock: Clock = time.perf_counter
) -> Iterator[PlainRow]:
    """Measures both in turn on the cases of `benchmark_ops` that have a plain form.

    Args:
        only: parts of names; all cases where empty.
        seconds: about so long for each case, and three turns at least.
        clock: what times are read from.
    """
    for group in GROUPS:
        torch.manual_seed(0)
        for case in group("cpu"):
            if only and not any(part in case.name for part in only):
                continue
            kernel: list[float] = []
            plain: list[float] = []
            while len(plain) < 4 or sum(kernel) + sum(plain) < 1e3 * seconds:
                start = clock()
                case.run()
                kernel.append(1e3 * (clock() - start))
                with instead_of_kernels():
                    start = clock()
                    case.run()
                    plain.append(1e3 * (clock() - start))
            # The first turn warms up.
            kernel_ms, plain_ms = statistics.median(kernel[1:]), statistics.median(plain[1:])
            yield PlainRow(case.name, case.dtype, kernel_ms, plain_ms, plain_ms / kernel_ms)
