"""Timing of operator cases, with a clock that only the cases advance."""

from functools import partial

import pytest
import torch

from benchmarks.operators.case import Case
from benchmarks.operators.measure import benchmark_ops


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, milliseconds):
        self.now += milliseconds / 1e3


@pytest.fixture
def clock(monkeypatch):
    """Two groups with three cases replace the real ones."""
    monkeypatch.setattr("benchmarks.operators.measure._copy_rate", lambda *args: 7.0)
    clock = FakeClock()

    def case(name, own, reference, traffic=0):
        return Case(name, partial(clock.advance, own), partial(clock.advance, reference), traffic)

    def first(device):
        yield case(f"slow_{device}_{torch.rand(()):.3f}", 4, 1)

    def second(device):
        yield case(f"fast_{device}_{torch.rand(()):.3f}", 1, 20)
        yield case("copied", 2, 2, traffic=4_000_000)

    monkeypatch.setattr("benchmarks.operators.measure.GROUPS", (first, second))
    return clock


def test_every_case_has_a_row(clock):
    rows = list(benchmark_ops("cpu", seconds=0.1, clock=clock))
    torch.manual_seed(0)
    number = f"{torch.rand(()):.3f}"  # each group starts from the same seed
    assert [row.case for row in rows] == [f"slow_cpu_{number}", f"fast_cpu_{number}", "copied"]
    assert [row.ratio for row in rows] == pytest.approx([0.25, 20, 1])
    assert [row.detlite_ms for row in rows] == pytest.approx([4, 1, 2])
    assert [row.gb_per_s for row in rows] == [None, None, pytest.approx(2.0)]
    assert [row.copy_gb_per_s for row in rows] == [None, None, 7.0]


def test_selected_fast_calls_are_repeated_in_each_turn(clock):
    (row,) = benchmark_ops("cpu", ["fast"], 0.28, clock)
    assert row.case.startswith("fast_cpu")
    # Two calls of each to warm up, then ten turns of eight calls of 1 ms and one of 20 ms.
    assert clock.now == pytest.approx((2 * 21 + 10 * 28) / 1e3)
