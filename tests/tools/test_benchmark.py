"""tools/benchmark.py, on its cheapest case."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.fixture(autouse=True)
def threads():
    """The program sets how many threads torch uses."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_rows_are_printed_and_written(run_tool, tmp_path, capsys):
    file = tmp_path / "ops.json"
    options = ("--only", "batched_nms", "--seconds", "0.01", "--cpu-time", "--json", file)
    assert run_tool("benchmark.py", "ops", *options) == 0
    (row,) = json.loads(file.read_text())
    assert (row["case"], row["device"], row["dtype"]) == ("batched_nms_4k_80", "cpu", "float32")
    assert row["ratio"] == pytest.approx(row["torchvision_ms"] / row["detlite_ms"])
    printed = capsys.readouterr().out.splitlines()
    assert "1 threads" in printed[0]
    assert printed[1].split()[:2] == ["case", "dtype"]
    assert printed[2].split()[:2] == [row["case"], row["dtype"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "no_such_case"), "--only no_such_case: no case has that in its name"),
        (("--device", "cuda", "--cpu-time"), "--device cuda"),
    ],
)
def test_bad_options_are_one_line_and_status_2(run_tool, capsys, options, message):
    assert run_tool("benchmark.py", "ops", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["--threads", "0"], "--threads 0: at least one"),
        (["--json", "no/such/rows.json"], "--json no/such/rows.json: No such file"),
    ],
)
def test_options_that_cannot_be_followed(run_tool, capsys, opts, message):
    assert run_tool("benchmark.py", "ops", *opts) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert not captured.out
