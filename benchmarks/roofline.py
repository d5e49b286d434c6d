"""Measure the matrix-product rate of the machine, and the operations and memory of a call."""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from detlite.apps.allocator import keep_freed_memory, keeps_freed_memory

from .clock import Clock, time_call

# (M, K, N) of matrix products: large squares, a wide layer, and a 3 x 3 convolution with 64
# channels on a map of 200 x 304. Only large ones reach the highest rate of a GPU.
SHAPES = ((2048, 2048, 2048), (4096, 1024, 4096), (60_800, 576, 64))
_CUDA_SHAPES = (*SHAPES, (8192, 8192, 8192))
_STATUS = Path("/proc/self/status")  # only on Linux


def matmul_peak(
    dtype: torch.dtype, device: str, clock: Clock = time.perf_counter, repeats: int = 5
) -> float:
    """Return the highest rate of `torch.mm` over some shapes, in operations per second.

    A multiplication and an addition count as two operations.
    """
    best = 0.0
    for rows, inner, columns in _CUDA_SHAPES if device == "cuda" else SHAPES:
        left = torch.randn(rows, inner, device=device).to(dtype)
        right = torch.randn(inner, columns, device=device).to(dtype)
        for _ in range(repeats + 1):  # the first one warms up
            seconds = time_call(lambda: torch.mm(left, right), device, clock)  # noqa: B023
            best = max(best, 2 * rows * inner * columns / seconds)
    return best


def count_flops(run: Callable[[], object]) -> int:
    """Return the operations of the convolutions and matrix products of a call.

    The backward pass counts too. All other operations, such as RoIAlign, do not count.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return counter.get_total_flops()


def peak_memory(build: Callable[..., Callable[[], object]], *args: Any, device: str) -> float:
    """Return the peak memory of a call in a new process, without the loaded libraries.

    Args:
        build: module-level function that returns the call. It runs in the new process.
        args: arguments of `build`.
        device: "cuda" measures the memory that torch allocates on the GPU.

    Returns:
        The peak of two calls in 10^6 bytes, including the model; nan if the system does not
        report it.
    """
    keep = keep_freed_memory if keeps_freed_memory() else None
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=keep) as pool:
        return pool.submit(_peak_memory, build, args, device, torch.get_num_threads()).result()


def _peak_memory(
    build: Callable[..., Callable[[], object]], args: Any, device: str, threads: int
) -> float:
    torch.set_num_threads(threads)
    before = process_memory("VmRSS")
    run = build(*args)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_peak_memory()
    for _ in range(2):
        run()
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return process_memory("VmHWM") - before


def reset_peak_memory() -> None:
    """Reset VmHWM of this process to its current memory."""
    if _STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def process_memory(name: str) -> float:
    """Return VmRSS (memory) or VmHWM (its peak) of this process in 10^6 bytes."""
    if not _STATUS.exists():
        return float("nan")
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024 / 1e6
