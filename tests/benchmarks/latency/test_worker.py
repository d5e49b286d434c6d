"""Processes that answer requests."""

import os
import sys

import pytest

from benchmarks.latency.worker import Worker, time_calls

_CHILD = """
import os
from benchmarks.latency.worker import serve
def answer(request):
    print("what a library prints")
    return {"double": 2 * request["number"], "threads": os.environ["OMP_NUM_THREADS"],
            "cores": sorted(os.sched_getaffinity(0)),
            "bytecode": os.environ.get("PYTHONDONTWRITEBYTECODE")}
serve(answer)
"""


@pytest.fixture
def core():
    """Return the number of a core that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("needs Linux")
    return min(os.sched_getaffinity(0))


def test_worker_answers_on_its_cores(core):
    worker = Worker([sys.executable, "-c", _CHILD], [core])
    expected = {"threads": "1", "cores": [core], "bytecode": None}
    assert worker.ask(number=3) == {"double": 6, **expected}
    assert worker.ask(number=4)["double"] == 8
    worker.close()


def test_end_of_a_worker_is_an_error(core):
    worker = Worker([sys.executable, "-c", "raise SystemExit(3)"], [core])
    with pytest.raises(RuntimeError, match="ended with 3"):
        worker.ask(number=1)
    worker.close()


def test_calls_are_timed_until_a_limit(monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setitem(
        sys.modules["benchmarks.latency.worker"].CLOCKS, "wall", lambda: next(seconds)
    )
    assert time_calls(lambda: None, 10, 3) == [1000, 1000, 1000]
    assert time_calls(lambda: None, 2, 9) == [1000, 1000]
    assert time_calls(lambda: None, 0, 9) == []
