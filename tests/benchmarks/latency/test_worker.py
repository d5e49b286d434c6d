"""Processes that answer requests."""

import os
import sys

import pytest

from benchmarks.latency.worker import CLOCKS, Worker, time_calls

_CHILD = """
import os
from benchmarks.latency.worker import serve
def answer(request):
    print("what a library prints")
    return {"double": 2 * request["number"], "threads": os.environ["OMP_NUM_THREADS"],
            "cores": sorted(os.sched_getaffinity(0))}
serve(answer)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_worker_answers_on_its_cores():
    core = min(os.sched_getaffinity(0))
    worker = Worker([sys.executable, "-c", _CHILD], [core])
    assert worker.ask(number=3) == {"double": 6, "threads": "1", "cores": [core]}
    assert worker.ask(number=4)["double"] == 8
    worker.close()
    worker = Worker([sys.executable, "-c", "raise SystemExit(3)"], [core])
    with pytest.raises(RuntimeError, match="ended with 3"):
        worker.ask(number=1)
    worker.close()


def test_calls_are_timed_until_a_limit(monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setitem(CLOCKS, "wall", lambda: next(seconds))
    for limits, calls in (((10, 3), 3), ((2, 9), 2), ((0, 9), 0)):
        assert time_calls(lambda: None, *limits) == [1000] * calls
