"""`python -m benchmarks` on its cheapest cases."""

import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.interleaved_timing import StepRow
from benchmarks.models.inference import Inference
from benchmarks.models.training import Training


@pytest.fixture
def run():
    """`run("ops", "--only", "nms")`: run the program in this process and return its status."""
    return lambda *arguments: main([str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def threads():
    """Restore the number of threads that the program changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_rows_are_printed_and_written(run, tmp_path, capsys):
    files = tmp_path / "fallback.json", tmp_path / "fallback.md"
    options = ("--fallback", "--only", "match_243k_10", "--seconds", "0.01", "--cpu-time")
    options = (*options, "--json", files[0], "--markdown", files[1])
    assert run("ops", *options) == 0
    (row,) = json.loads(files[0].read_text())
    assert row["case"] == "match_243k_10"
    assert row["ratio"] == pytest.approx(row["fallback_ms"] / row["kernel_ms"])
    printed = capsys.readouterr().out.splitlines()
    assert "1 threads" in printed[0]
    assert printed[3].split()[1] == row["case"]
    machine, command, _, titles, _, cells = files[1].read_text().splitlines()
    assert "threads of" in machine
    assert command == f"`python -m benchmarks ops {' '.join(map(str, options))}`"
    assert titles.startswith("| case")
    assert cells.startswith("| match_243k_10")


def test_data_benchmark(run, repo_root, monkeypatch, capsys):
    monkeypatch.chdir(repo_root)
    options = ("--workers", 0, "--images", 2, "--turns", 1, "--cpu-time")
    sizes = ("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MAX_SIZE_TRAIN", 96)
    assert run("data", *options, *sizes) == 0
    assert "| generated " in capsys.readouterr().out


def test_options_become_settings(run, monkeypatch):
    recorded = []

    def record(*args, **options):
        recorded.append((args, options))
        return iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])

    for name in ("benchmark_model", "benchmark_train"):
        monkeypatch.setattr(f"benchmarks.__main__.{name}", record)
    monkeypatch.setattr("benchmarks.__main__.keep_freed_memory", lambda: None)
    config, size = "some.yaml", ("--size", 64, 96)
    options = ("--only", "detlite float32", "--detections", 12, "--threshold", 0.5, *size)
    assert run("model", "--config", config, *options, "SEED", 3) == 0
    options = ("--objects", 500, "--real", "--dtype", "bfloat16", "--batch", 4)
    assert run("train", "--config", config, *options, *size) == 0
    (model, _), (train, settings) = recorded
    inference = Inference(config, ("SEED", "3"), 1, (64, 96), 12, 0.5)
    assert model[:3] == (inference, 5, (("detlite", "float32"),))
    assert train == (Training(config, (), 4, (64, 96), 500, True), 5)
    assert settings["dtypes"] == ("bfloat16",)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("model --only tensorflow", "--only tensorflow: no name of a mode contains this"),
        ("train --config no.yaml", "no.yaml"),
        ("data --cpu-time", "--cpu-time does not measure loader processes: use --workers 0"),
        ("ops --only no_such_case", "--only no_such_case: no name of a case contains this"),
        ("ops --device cuda --cpu-time", "--device cuda"),
        ("ops --threads 0", "--threads 0: must be at least 1"),
    ],
)
def test_invalid_options_print_one_line_and_no_table(run, capsys, command, message):
    assert run(*command.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "|" not in captured.out
