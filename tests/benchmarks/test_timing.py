"""Times, operations and phases of a call, with a fake clock, and the tables of results."""

import types

import torch

from benchmarks import roofline
from benchmarks.interleaved_timing import StepRow, interleaved_medians
from benchmarks.models.phases import Stopwatch, measure_phases, phase_functions, watch_functions
from benchmarks.report import header, line, phase_table
from benchmarks.roofline import count_flops, matmul_peak

ROWS = [
    StepRow("detlite", "float32", 1.5, 2.0, 490.0, 0.9, 800.0, {"data": 1.0, "backward": 2.5}),
    StepRow("torchvision", "float32", 3.0, None, 490.0, 0.45, 900.0, {"data": 3.0}),
]


def cells(text: str) -> list[str]:
    return [cell.strip() for cell in text.strip("|").split("|")]


def test_cells_are_aligned_with_titles():
    titles, rule = header(StepRow).splitlines()
    assert cells(titles) == [
        *("library", "mode", "seconds", "ratio", "gflop", "peak fraction", "memory mb"),
    ]
    row = line(ROWS[1])
    assert cells(row) == ["torchvision", "float32", "3.00", "", "490.00", "0.45", "900.00"]
    assert len(titles) == len(rule) == len(row)


def test_phase_table():
    lines = phase_table(ROWS).splitlines()
    assert [cells(one) for one in (lines[0], *lines[2:])] == [
        ["phase", "detlite float32", "torchvision float32"],
        ["data", "1.00", "3.00"],
        ["backward", "2.50", ""],
    ]
    assert phase_table([StepRow("detlite", "float32", 1.5, None, 1.0, None)]) == ""


def test_calls_alternate_and_the_first_is_ignored():
    now, order = [0.0], []
    durations = {"a": iter([50, 3, 1, 2]), "b": iter([70, 7, 9, 8])}

    def run(name):
        order.append(name)
        now[0] += next(durations[name])

    calls = {"a": lambda: run("a"), "b": lambda: run("b")}
    assert interleaved_medians(calls, 3, "cpu", lambda: now[0]) == {"a": 2, "b": 8}
    assert order == ["a", "b"] * 4


def test_peak_is_the_best_rate(monkeypatch):
    monkeypatch.setattr(roofline, "SHAPES", ((4, 8, 2), (4, 8, 16)))
    seconds = iter([1, 9, 2, 4, 4, 8, 0, 5, 5, 7, 7, 10])  # 8, 2, 4; then 5, 2, 3
    rate = matmul_peak(torch.float32, "cpu", lambda: float(next(seconds)), repeats=2)
    assert rate == max(2 * 4 * 8 * 2 / 2, 2 * 4 * 8 * 16 / 2)


def test_flops_of_forward_and_backward():
    layer = torch.nn.Conv2d(3, 5, 3, bias=False)
    x = torch.randn(1, 3, 10, 10)
    forward = 2 * 5 * 3 * 9 * 8 * 8
    assert count_flops(lambda: layer(x)) == forward
    assert count_flops(lambda: layer(x).sum().backward()) == 2 * forward  # only of the weights


def test_inner_phases_do_not_count_for_the_outer_one():
    now = [0.0]
    library = types.SimpleNamespace()

    def inner():
        now[0] += 2

    def outer():
        now[0] += 1
        library.inner()
        library.inner()
        now[0] += 4

    library.inner, library.outer = inner, outer
    watch = Stopwatch("cpu", lambda: now[0])
    functions = (("whole", library, "outer"), ("part", library, "inner"))
    milliseconds = measure_phases(lambda: library.outer(), functions, watch, 3)
    assert milliseconds == {"whole": 5e3, "part": 4e3}
    assert (library.inner, library.outer) == (inner, outer)


def test_functions_exist_and_are_restored():
    for functions in (phase_functions("detlite"), phase_functions("torchvision")):
        before = [getattr(owner, name) for _, owner, name in functions]
        with watch_functions(functions, Stopwatch("cpu")):
            pass
        assert before == [getattr(owner, name) for _, owner, name in functions]
