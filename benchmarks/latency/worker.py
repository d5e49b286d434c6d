"""Processes that measure calls on request, so that a program can alternate between them.

Imports only the standard library, because it also runs in the environments of other libraries.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
ROOT = Path(__file__).parents[2]  # folder of the repository, where the programs run
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
}


class Worker:
    """A process that answers requests, restricted to some cores of the machine.

    Args:
        command: program that calls `serve`.
        cores: numbers of the cores; their count is OpenMP's number of threads.
    """

    def __init__(self, command: Sequence[str], cores: Sequence[int]) -> None:
        self.command = command
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(cores), preexec_fn=lambda: use_cores(cores),
        )  # fmt: skip

    def ask(self, **request: Any) -> Answer:
        """Return the answer to a request. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # then there is no answer either, see below
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.command)}: ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def environment(cores: Sequence[int]) -> dict[str, str]:
    """Return the environment of a process that uses these cores and caches its bytecode."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"OMP_NUM_THREADS": str(len(cores))}


def use_cores(cores: Sequence[int]) -> None:
    """Restrict this process to some cores, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def serve(answer: Callable[[Answer], Answer]) -> None:
    """Answer the requests of a `Worker` until it closes. Output of libraries goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def time_calls(
    call: Callable[[], object], seconds: float, max_calls: int, clock: str = "wall"
) -> list[float]:
    """Return the milliseconds of each call, for up to `seconds` or `max_calls` calls."""
    now = CLOCKS[clock]
    times: list[float] = []
    while len(times) < max_calls and sum(times) < 1000 * seconds:
        start = now()
        call()
        times.append(1000 * (now() - start))
    return times
