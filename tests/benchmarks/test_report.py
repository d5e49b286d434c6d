"""Markdown tables of results."""

from benchmarks.interleaved_timing import StepRow
from benchmarks.report import header, line, phase_table

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
