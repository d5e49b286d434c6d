"""Freed memory is kept, and used again."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, torch
from detlite.inference.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.ones(16 << 20)
before = faults()
kept = keep_freed_memory()
for _ in range(8):  # the heap grows to what it needs, in one step or in several
    faults()
print(kept, before, faults())
"""


def test_pages_are_cleared_once() -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    kept, before, after = output.stdout.split()
    if kept == "True":  # there is a glibc
        assert int(after) < int(before) / 10
    else:
        assert kept == "False"
