"""Settings of torch's libraries for CPUs, the number of usable cores, and threads."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COMPILED_CONVOLUTIONS = 16384  # oneDNN keeps 1024; a step of Lite0 needs about 230 per image shape
_GROUP = 4096  # rows that are passed to threads together
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def configure_cpu_libraries() -> None:
    """Set environment variables of OpenMP and oneDNN, unless the user has set them.

    - Threads sleep, not spin, while they wait for each other. While other programs run, spinning
      threads occupy the cores that working threads need, and a training step takes several times
      as long.
    - oneDNN keeps the compiled convolutions of more input sizes. Images of other shapes need other
      ones, and a training of small images spent a fifth of its time compiling them.

    Has an effect only before torch is imported.
    """
    if not any(name in os.environ for name in _WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_COMPILED_CONVOLUTIONS))


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and the control groups of Linux allow."""
    return max(1, int(min(len(_affinity()), *_quotas())))


def limit_threads(processes: int = 1) -> None:
    """Limit torch to the usable cores, unless OMP_NUM_THREADS is set.

    With more threads than cores, each step waits for a thread without a core. Several `processes`
    on this machine share the cores.
    """
    import torch  # late, because the command line imports this module

    if "OMP_NUM_THREADS" not in os.environ:
        threads = min(torch.get_num_threads(), usable_cores() // processes)
        torch.set_num_threads(max(threads, 1))


def in_threads(
    function: Callable[[Any], Any], rows: Sequence[Any], threads: int | None = None
) -> Iterator[Any]:
    """Yield the results of a function for all rows; few of them wait in memory."""
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(rows), _GROUP):
            yield from pool.map(function, rows[first : first + _GROUP])


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _quotas() -> list[float]:
    """Return the limits of the control groups (versions 1 and 2) of this process, in cores."""
    limits = [float("inf")]
    for line in _read_text(_PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / "cpu" if controllers else _CGROUPS
        folder = root / group.lstrip("/")
        for level in (folder, *folder.parents):
            quota, _, period = _read_text(level / "cpu.max").partition(" ")
            if controllers:
                quota = _read_text(level / "cpu.cfs_quota_us")
                period = _read_text(level / "cpu.cfs_period_us")
            if quota.strip().isdigit() and int(period) > 0:
                limits.append(int(quota) / int(period))
    return limits


def _read_text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
