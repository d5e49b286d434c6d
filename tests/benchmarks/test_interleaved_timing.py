"""Interleaved timing, with a fake clock."""

from benchmarks.interleaved_timing import interleaved_medians


def test_calls_alternate_and_the_first_is_ignored():
    now, order = [0.0], []
    durations = {"a": iter([50, 3, 1, 2]), "b": iter([70, 7, 9, 8])}

    def run(name):
        order.append(name)
        now[0] += next(durations[name])

    calls = {"a": lambda: run("a"), "b": lambda: run("b")}
    assert interleaved_medians(calls, 3, "cpu", lambda: now[0]) == {"a": 2, "b": 8}
    assert order == ["a", "b"] * 4
