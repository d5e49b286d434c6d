"""What a machine can do, and what a call asks of it: multiplications, and memory."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from detlite.apps.batch_predict.allocator import keep_freed_memory, keeps_freed_memory

from .operators.case import Clock

# (M, K, N): large and square, a wide layer, and a 3x3 of 64 channels on a map of 200 x 304.
SHAPES = ((2048, 2048, 2048), (4096, 1024, 4096), (60_800, 576, 64))
_STATUS = Path("/proc/self/status")  # Linux alone


def matmul_peak(
    dtype: torch.dtype, device: str, clock: Clock = time.perf_counter, repeats: int = 5
) -> float:
    """The most operations a second, two for each multiplication, of `torch.mm` in any of SHAPES."""
    best = 0.0
    for rows, inner, columns in SHAPES:
        left = torch.randn(rows, inner, device=device).to(dtype)
        right = torch.randn(inner, columns, device=device).to(dtype)
        for _ in range(repeats + 1):  # the first one warms up
            synchronize(device)
            start = clock()
            torch.mm(left, right)
            synchronize(device)
            best = max(best, 2 * rows * inner * columns / (clock() - start))
    return best


def flops(run: Callable[[], object]) -> int:
    """Operations of the convolutions and matrix products of a call, its backward pass included.

    Everything else counts as none, compiled operators of detlite's and torchvision's among it.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return counter.get_total_flops()


def peak_memory(build: Callable[..., Callable[[], object]], *args: Any, device: str) -> float:
    """The most memory, in MB, that a call takes beyond what its process has with the libraries.

    Args:
        build: called with `args` in a process of its own, where it gives the call; a function of a
            module. The call runs twice.
        device: "cuda" measures what torch has allocated there.

    Returns:
        The peak in 10^6 bytes, with the model in it; nan where the system does not tell it.
    """
    keep = keep_freed_memory if keeps_freed_memory() else None
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=keep) as pool:
        return pool.submit(_peak, build, args, device, torch.get_num_threads()).result()


def _peak(
    build: Callable[..., Callable[[], object]], args: Any, device: str, threads: int
) -> float:
    torch.set_num_threads(threads)
    before = status("VmRSS")
    run = build(*args)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif _STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for _ in range(2):
        run()
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return status("VmHWM") - before


def status(name: str) -> float:
    """A line of the process's status in MB."""
    if not _STATUS.exists():
        return float("nan")
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024 / 1e6


def synchronize(device: str) -> None:
    """Waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
