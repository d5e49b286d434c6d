from __future__ import annotations

import json

import pytest

from detlite.benchmark.train import Training, benchmark_train, write_trace


@pytest.fixture
def training(config, small):
    return Training(config, small, batch=1, size=(64, 96), objects=3)


@pytest.mark.usefixtures("no_machine")
def test_rows_of_both_libraries_and_their_phases(training):
    ours, theirs = benchmark_train(training, 1, dtypes=("bfloat16",))
    assert (ours.library, theirs.library) == ("detlite", "torchvision")
    assert ours.ratio == pytest.approx(theirs.seconds / ours.seconds)
    assert ours.gflop == pytest.approx(theirs.gflop, rel=0.02)
    for row in (ours, theirs):
        assert row.peak_share == pytest.approx(row.gflop / row.seconds)
        assert row.phases.keys() >= {
            *("inputs", "backbone", "RPN", "matching", "proposals", "box head", "mask head"),
            *("mask targets", "backward", "optimizer", "other"),
        }


def test_a_trace_names_the_phases(training, tmp_path):
    file = tmp_path / "trace.json"
    write_trace(training, "float32", file)
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert names >= {"backbone", "matching", "backward", "optimizer", "aten::convolution"}
