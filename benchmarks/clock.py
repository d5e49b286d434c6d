"""Timing of single calls."""

from collections.abc import Callable

import torch

# Returns seconds. `time.process_time` counts the CPU time of this process: with one thread, the
# same as `time.perf_counter` on an otherwise idle machine.
Clock = Callable[[], float]


def time_call(run: Callable[[], object], device: str, clock: Clock) -> float:
    """Return the seconds of a call, including its work on a GPU."""
    synchronize(device)
    start = clock()
    result = run()
    synchronize(device)
    seconds = clock() - start
    del result  # not measured, because it may free much memory
    return seconds


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
