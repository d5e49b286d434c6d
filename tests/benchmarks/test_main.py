"""`python -m benchmarks` on its cheapest cases."""

import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.interleaved_timing import StepRow
from benchmarks.models.inference import Inference
from benchmarks.models.scaling import AXES
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


@pytest.fixture
def calls(monkeypatch):
    """Replace the slow benchmarks by a row; return the arguments of each."""
    recorded = {}

    def recorder(name):
        def record(*args, **options):
            recorded[name] = (args, options)
            return iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])

        return record

    for name in ("benchmark_model", "benchmark_train", "benchmark_scaling", "write_trace",
                 "plot_scaling", "keep_freed_memory"):  # fmt: skip
        monkeypatch.setattr(f"benchmarks.__main__.{name}", recorder(name))
    return recorded


@pytest.mark.slow
def test_rows_are_printed_and_written(run, tmp_path, capsys):
    files = tmp_path / "ops.json", tmp_path / "ops.md"
    options = ("--only", "batched_nms", "--seconds", "0.01", "--cpu-time", "--json", files[0])
    options = (*options, "--markdown", files[1])
    assert run("ops", *options) == 0
    (row,) = json.loads(files[0].read_text())
    assert (row["case"], row["device"], row["dtype"]) == ("batched_nms_4k_80", "cpu", "float32")
    assert row["ratio"] == pytest.approx(row["torchvision_ms"] / row["detlite_ms"])
    printed = capsys.readouterr().out.splitlines()
    assert "1 threads" in printed[0]
    assert printed[1].split()[1] == "case"
    assert printed[3].split()[1:6:2] == [row["case"], row["device"], row["dtype"]]
    machine, command, _, titles, _, cells = files[1].read_text().splitlines()
    assert "threads of" in machine
    assert command == f"`python -m benchmarks ops {' '.join(map(str, options))}`"
    assert titles.startswith("| case")
    assert cells.startswith("| batched_nms_4k_80")


def test_fallback_operators(run, tmp_path):
    file = tmp_path / "fallback.json"
    options = ("--fallback", "--only", "match_243k_10", "--seconds", "0.01", "--json", file)
    assert run("ops", *options) == 0
    (row,) = json.loads(file.read_text())
    assert row["case"] == "match_243k_10"
    assert row["ratio"] == pytest.approx(row["fallback_ms"] / row["kernel_ms"])


@pytest.mark.parametrize("is_native", [True, False])
def test_bfloat16_is_measured_by_default_only_with_native_support(
    run, calls, monkeypatch, is_native
):
    dtypes = ["float32", "bfloat16"][: 1 + is_native]
    monkeypatch.setattr("benchmarks.__main__.has_bfloat16", lambda device: is_native)
    assert run("model", "--config", "some.yaml") == run("train", "--config", "some.yaml") == 0
    modes = calls["benchmark_model"][0][2]
    assert [mode for library, mode in modes if library == "torchvision"] == dtypes
    assert ("detlite", "optimize bfloat16") in modes or not is_native
    assert calls["benchmark_train"][1]["dtypes"] == tuple(dtypes)


def test_data_benchmark(run, repo_root, monkeypatch, capsys):
    monkeypatch.chdir(repo_root)
    options = ("--workers", 0, "--images", 2, "--turns", 1, "--cpu-time")
    sizes = ("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MAX_SIZE_TRAIN", 96)
    assert run("data", *options, *sizes) == 0
    assert "| generated " in capsys.readouterr().out


@pytest.mark.slow
def test_evaluation_benchmark(run, capsys):
    assert run("eval", "--images", 12, "--detections", 5) == 0
    printed = capsys.readouterr().out
    assert "| bbox " in printed
    assert "| segm " in printed


def test_options_become_settings(run, calls, tmp_path):
    config, file, size = "some.yaml", tmp_path / "file", ("--size", 64, 96)
    options = ("--only", "detlite float32", "--detections", 12, "--threshold", 0.5, *size)
    assert run("model", "--config", config, *options, "SEED", 3) == 0
    inference = Inference(config, ("SEED", "3"), 1, (64, 96), 12, 0.5)
    assert calls["benchmark_model"][0][:3] == (inference, 5, (("detlite", "float32"),))

    options = ("--objects", 500, "--real", "--dtype", "bfloat16", "--trace", file, "--batch", 4)
    assert run("train", "--config", config, *options, *size) == 0
    training = Training(config, (), 4, (64, 96), 500, True)
    assert calls["benchmark_train"][0] == (training, 5)
    assert calls["benchmark_train"][1]["dtypes"] == ("bfloat16",)
    assert calls["write_trace"][0] == (training, "bfloat16", file)

    assert run("scaling", "--axes", "classes", "--plot", file, "--turns", 2, *size) == 0
    assert calls["benchmark_scaling"][0][2:4] == ({"classes": AXES["classes"]}, 2)
    assert calls["plot_scaling"][0][1] == file


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        (("model",), True),
        (("train",), False),
        (("model", "--freed-memory", "return"), False),
        (("train", "--freed-memory", "keep"), True),
    ],
)
def test_freed_memory_is_kept_like_in_the_commands(run, calls, options, keeps):
    assert run(*options, "--config", "some.yaml") == 0
    assert ("keep_freed_memory" in calls) == keeps


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("model --only tensorflow", "--only tensorflow: no name of a mode contains this"),
        ("train --batch 0", "--batch 0: must be at least 1"),
        ("train --config no.yaml", "no.yaml"),
        ("train --trace no/such.json", "--trace no/such.json: No such file"),
        ("data --cpu-time", "--cpu-time does not measure loader processes: use --workers 0"),
        ("scaling --markdown no/such.md", "--markdown no/such.md: No such file"),
        ("ops --only no_such_case", "--only no_such_case: no name of a case contains this"),
        ("ops --fallback --only nonsense", "no name of a case contains this"),
        ("ops --device cuda --cpu-time", "--device cuda"),
        ("ops --threads 0", "--threads 0: must be at least 1"),
        ("ops --json no/such/rows.json", "--json no/such/rows.json: No such file"),
    ],
)
def test_invalid_options_print_one_line_and_no_table(run, capsys, command, message):
    assert run(*command.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "|" not in captured.out
