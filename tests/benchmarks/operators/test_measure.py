"""Timing of operator cases, with a clock that only the cases advance."""

import pytest

from benchmarks.operators.case import Case
from benchmarks.operators.measure import benchmark_ops


@pytest.fixture
def clock(monkeypatch):
    """Two cases replace the real ones: calls of 4 ms and 1 ms, and of 1 ms and 20 ms."""
    now = [0.0]

    def advance(milliseconds):
        return lambda: now.__setitem__(0, now[0] + milliseconds / 1e3)

    def cases(device):
        yield Case("slow", advance(4), advance(1))
        yield Case("fast", advance(1), advance(20), traffic=4_000_000)

    monkeypatch.setattr("benchmarks.operators.measure._copy_rate", lambda *args: 7.0)
    monkeypatch.setattr("benchmarks.operators.measure.GROUPS", (cases,))
    return lambda: now[0]


def test_every_case_has_a_row(clock):
    slow, fast = benchmark_ops("cpu", seconds=0.1, clock=clock)
    assert [slow.case, fast.case] == ["slow", "fast"]
    assert [slow.ratio, fast.ratio] == pytest.approx([0.25, 20])
    assert [slow.detlite_ms, fast.detlite_ms] == pytest.approx([4, 1])
    assert (slow.gb_per_s, slow.copy_gb_per_s) == (None, None)
    assert (fast.gb_per_s, fast.copy_gb_per_s) == (pytest.approx(4.0), 7.0)


def test_selected_fast_calls_are_repeated_in_each_turn(clock):
    assert [row.case for row in benchmark_ops("cpu", ["fast"], 0.28, clock)] == ["fast"]
    # Two calls of each to warm up, then ten turns of eight calls of 1 ms and one of 20 ms.
    assert clock() == pytest.approx((2 * 21 + 10 * 28) / 1e3)
