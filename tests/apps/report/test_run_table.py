"""Tables of runs: differing keys, grouped seeds, and their formats."""

from pathlib import Path

import pytest

from detlite.apps.report.run_table import format_rows, run_table
from detlite.apps.report.runs import Run
from detlite.config import load_config


def make_run(name, ap, seed=0, rate=0.01, **kinds):
    cfg = load_config(None, ["SEED", seed, "OUTPUT_DIR", name, "SOLVER.BASE_LR", rate])
    measured = {"bbox": {"AP": ap, "APs": 0.1, "per_category": {"cat": ap}}, **kinds}
    return Run(name, Path(name), cfg, {"val": measured})


def test_seeds_are_grouped_and_differing_keys_are_columns():
    runs = [make_run("a", 0.4), make_run("b", 0.2, rate=0.02), make_run("c", 0.5, seed=1)]
    assert run_table(runs) == [
        ["run", "SOLVER.BASE_LR", "bbox AP (%)"],
        ["a, c", "0.01", "45.0 ± 7.1"],
        ["b", "0.02", "20.0"],
    ]


def test_other_metrics_are_shown_as_they_are():
    runs = [make_run("a", 0.4, counts={"error": 0.53}), make_run("b", None, rate=0.02)]
    runs[1].evaluation["test"] = {"bbox": {"AP": 0.3}}
    assert run_table(runs) == [
        ["run", "SOLVER.BASE_LR", "bbox AP (%)", "counts error", "test bbox AP (%)"],
        ["a", "0.01", "40.0", "0.5300", ""],
        ["b", "0.02", "", "", "30.0"],
    ]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("text", ["run   AP", "a, b  1 ± 2"]),
        ("markdown", ["| run | AP |", "| --- | --- |", "| a, b | 1 ± 2 |"]),
        ("csv", ["run,AP", '"a, b",1 ± 2']),
    ],
)
def test_formats(form, lines):
    assert format_rows([["run", "AP"], ["a, b", "1 ± 2"]], form).splitlines() == lines
