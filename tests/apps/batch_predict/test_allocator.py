"""Freed memory is kept, and used again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from concurrent.futures import ThreadPoolExecutor
from detlite.apps.batch_predict.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def after():
    for _ in range(8):  # the heap grows to what it needs, in one step or in several
        faults()
    return faults()

torch.ones(16 << 20)
before = faults()
kept, threads = keep_freed_memory(), ThreadPoolExecutor(1)
print(kept, before, after() if sys.argv[1] == "main" else threads.submit(after).result())
"""


@pytest.mark.parametrize("thread", ["main", "another"])
def test_pages_are_cleared_once(thread: str) -> None:
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, thread], capture_output=True, text=True, check=True
    )
    kept, before, after = output.stdout.split()
    if kept == "True":  # there is a glibc
        assert int(after) < int(before) / 10
    else:
        assert kept == "False"
