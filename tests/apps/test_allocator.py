"""Test that freed memory is kept and reused."""

import pytest

from tests.builders import run_python

PROGRAM = """
import resource, torch
from concurrent.futures import ThreadPoolExecutor
from detlite.apps.allocator import keep_freed_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def page_faults_later():
    for _ in range(8):  # the heap may need several steps to reach its final size
        page_faults()
    return page_faults()

torch.ones(16 << 20)
before = page_faults()
kept = keep_freed_memory()
in_thread = ThreadPoolExecutor(1).submit(page_faults_later).result()
print(kept, before, in_thread, page_faults_later())
"""


@pytest.mark.slow
def test_pages_are_cleared_once_in_all_threads():
    kept, before, in_thread, in_main = run_python(PROGRAM, check=True).stdout.split()
    if kept == "True":  # this system has glibc
        assert max(int(in_thread), int(in_main)) < int(before) / 10
    else:
        assert kept == "False"
