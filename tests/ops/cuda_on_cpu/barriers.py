"""Disable each barrier of csrc/cuda in turn, and require that a case detects it.

CUDA_ON_CPU_SKIP=file:line makes the threads of the emulated CUDA runtime pass a barrier without
waiting. In at least one of several random orders, a case of cases.py must then give a different
result, an error or a crash. Otherwise the barrier is unnecessary or the cases are too weak. With
all barriers, the result of a case must not depend on the order. test_cuda_on_cpu.py runs this
script with a package whose CPU kernels are the CUDA kernels. The optional argument is a file for
the results.
"""

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
SECONDS = 20  # limit per barrier; an endless kernel counts as detected


def barriers() -> list[str]:
    """Return the barriers of all sources as "file:line"."""
    result = []
    for path in sorted((Path(__file__).parents[3] / "csrc" / "cuda").iterdir()):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("//")[0]
            if re.search(r"\b__sync(threads|threads_or|threads_and|threads_count|warp)\(", code):
                result.append(f"{path.name}:{number}")
    return result


def run_case(name: str, seed: int) -> list[Tensor]:
    os.environ["CUDA_ON_CPU_SEED"] = str(seed)
    return results(*inputs(CASES[name]))


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    """Return True if all tensors are equal to the last bit. NaN equals NaN."""
    pairs = zip(first, second, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in pairs)


def is_detected(barrier: str, expected: dict[str, list[Tensor]]) -> bool:
    """Return True if a result differs without the barrier. Runs in a process that may crash."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    signal.alarm(SECONDS)
    os.environ["CUDA_ON_CPU_SKIP"] = barrier
    status = 0
    try:
        differs = (not equal(run_case(name, s), expected[name]) for name in expected for s in SEEDS)
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
    errors = []
    for name in CASES:
        if not all(equal(run_case(name, seed), expected[name]) for seed in SEEDS):
            errors.append(f"{name}: the result depends on the order of threads or blocks")
        places[name] = set(reached().decode().split())
    for barrier in barriers():
        chosen = {name: expected[name] for name in CASES if barrier in places[name]}
        if not chosen:
            errors.append(f"{barrier}: no case reaches this barrier")
        elif not is_detected(barrier, chosen):
            errors.append(f"{barrier}: no case detects that this barrier is missing")
    print("\n".join(errors) or f"{len(barriers())} barriers, each is necessary")
    if len(sys.argv) > 1:
        torch.save(expected, sys.argv[1])
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
