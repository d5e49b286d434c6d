"""Count usable CPU cores, and limit torch's threads to the cores that other programs leave idle.

The command line imports this module, so slow modules are imported inside the functions.
"""

import os
import time
from pathlib import Path

_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_BUSY_CORES = 0.5  # other programs that use fewer cores are normal
_SAMPLE_SECONDS = 0.3
_limited = (0, 0)  # torch's threads before and after the last `limit_threads`


def wait_passively() -> None:
    """Let the threads of OpenMP sleep, not spin, while they wait for each other.

    While other programs run, spinning threads occupy the cores that working threads need, and a
    training step takes several times as long. Has an effect only before torch is imported.
    """
    if not any(name in os.environ for name in _WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and the control groups of Linux allow."""
    return max(1, int(min(len(_affinity()), *_quotas())))


def limit_threads(processes: int = 1) -> None:
    """Limit torch to the usable cores that are idle, unless OMP_NUM_THREADS is set.

    With more threads than idle cores, each step waits for a thread without a core. If several
    `processes` on this machine share the cores, other programs are not considered.
    """
    import logging

    import torch

    global _limited
    if "OMP_NUM_THREADS" in os.environ:
        return
    threads = torch.get_num_threads()
    if threads == _limited[1]:  # limited by an earlier call, when the machine may have been busy
        threads = _limited[0]
    cores = usable_cores()
    free = min(threads, cores // processes)
    if processes == 1 and free > 1:
        others = OtherPrograms()
        time.sleep(_SAMPLE_SECONDS)
        if (busy := others.cores()) >= _BUSY_CORES:
            free = max(min(free, cores - round(busy)), 1)
            logging.getLogger(__name__).warning(
                "other programs use %.1f of %d cores: torch uses %d of its %d threads. Stop them, "
                "or set OMP_NUM_THREADS", busy, cores, free, threads
            )  # fmt: skip
    _limited = threads, max(free, 1)
    torch.set_num_threads(_limited[1])


class OtherPrograms:
    """Measures the cores that other programs use, on Linux."""

    def __init__(self) -> None:
        self._last = self._read()

    def cores(self) -> float:
        """Return the mean number of cores since the last call, or the start; 0 if unknown."""
        before, self._last = self._last, self._read()
        seconds, total, ours = (now - then for now, then in zip(self._last, before, strict=True))
        return max(total - ours, 0.0) / max(seconds, 1e-9)

    def problem(self, what: str) -> str:
        """Describe how other programs slow down `what` since the last call; "" if they do not."""
        import torch

        others, cores, threads = self.cores(), usable_cores(), torch.get_num_threads()
        if others < _BUSY_CORES or others + threads <= cores + _BUSY_CORES:
            return ""
        better = max(cores - round(others), 1)
        problem = f"other programs use {others:.1f} of {cores} cores, so {what} is slow: stop them"
        return f"{problem}, or set OMP_NUM_THREADS={better}" if better < threads else problem

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return the time, and the CPU seconds of all programs and of this one."""
        import multiprocessing

        names = {f"cpu{number}" for number in _affinity()}
        rows = [line.split() for line in _read_text(_PROC / "stat").splitlines()]
        # Columns: user, nice, system, idle, iowait, irq, softirq, steal.
        columns = (1, 2, 3, 6, 7, 8)
        ticks = sum(int(row[n]) for row in rows if row[0] in names for n in columns)
        busy = ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
        ours = time.process_time()
        for worker in multiprocessing.active_children():
            fields = _read_text(_PROC / str(worker.pid) / "stat").rpartition(")")[2].split()
            ours += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
        return time.monotonic(), busy, ours


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
