"""Takes each barrier of csrc/cuda out, one at a time, and requires that a case shows it.

CUDA_ON_CPU_SKIP=file:line makes the threads of the stand-in pass a barrier without waiting. Then in
one of several random orders some case of cases.py must give another result, an error or a crash:
else the barrier is needless, or the cases are weak. With all barriers, a case must give the same in
every order. Runs in a copy of the package whose CPU kernels are the CUDA ones
(test_cuda_on_cpu.py); given a file, it writes the results there.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor

from detlite import _C
from tests.ops.cuda_on_cpu.cases import CASES, all_results, inputs, results

SEEDS = range(1, 9)
SECONDS = 20  # for one barrier; a kernel that goes on for ever shows it too


def barriers() -> list[str]:
    """As "file:line", of all sources."""
    found = []
    for path in sorted((Path(__file__).parents[3] / "csrc" / "cuda").iterdir()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("//")[0]
            if re.search(r"\b__sync(threads|threads_or|threads_and|threads_count|warp)\(", code):
                found.append(f"{path.name}:{number}")
    return found


def result(name: str, seed: int) -> list[Tensor]:
    os.environ["CUDA_ON_CPU_SEED"] = str(seed)
    return results(*inputs(CASES[name]))


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """To the last bit; NaNs are equal."""
    pairs = zip(some, others, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def shows(barrier: str, expected: dict[str, list[Tensor]]) -> bool:
    """Whether some result is another without the barrier, in a process that may die of it."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    signal.alarm(SECONDS)
    os.environ["CUDA_ON_CPU_SKIP"] = barrier
    status = 0
    try:
        differs = (not equal(result(name, s), expected[name]) for name in expected for s in SEEDS)
        status = int(any(differs))
    except Exception:
        status = 1
    os._exit(status)


def main() -> int:
    torch.set_num_threads(1)
    reached = ctypes.CDLL(_C.__file__).cuda_on_cpu_reached
    reached.restype = ctypes.c_char_p
    expected = all_results()
    reached()
    places: dict[str, set[str]] = {}
    wrong = []
    for name in CASES:
        if not all(equal(result(name, seed), expected[name]) for seed in SEEDS):
            wrong.append(f"{name}: the result depends on the order of threads or blocks")
        places[name] = set(reached().decode().split())
    for barrier in barriers():
        chosen = {name: expected[name] for name in CASES if barrier in places[name]}
        if not chosen:
            wrong.append(f"{barrier}: no case reaches this barrier")
        elif not shows(barrier, chosen):
            wrong.append(f"{barrier}: no case shows it when this barrier is missing")
    print("\n".join(wrong) or f"{len(barriers())} barriers, each is needed")
    if len(sys.argv) > 1:
        torch.save(expected, sys.argv[1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
