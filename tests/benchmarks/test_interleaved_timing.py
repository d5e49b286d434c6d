from __future__ import annotations

from benchmarks.interleaved_timing import in_turn


def test_calls_take_turns_and_the_first_does_not_count():
    now, order = [0.0], []
    durations = {"a": iter([50, 3, 1, 2]), "b": iter([70, 7, 9, 8])}

    def run(name):
        order.append(name)
        now[0] += next(durations[name])

    calls = {"a": lambda: run("a"), "b": lambda: run("b")}
    assert in_turn(calls, 3, "cpu", lambda: now[0]) == {"a": 2, "b": 8}
    assert order == ["a", "b"] * 4
