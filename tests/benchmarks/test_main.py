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


def test_rows_are_printed_and_written(run, tmp_path, capsys):
    file = tmp_path / "ops.json"
    options = ("--only", "batched_nms", "--seconds", "0.01", "--cpu-time", "--json", file)
    assert run("ops", *options) == 0
    (row,) = json.loads(file.read_text())
    assert (row["case"], row["device"], row["dtype"]) == ("batched_nms_4k_80", "cpu", "float32")
    assert row["ratio"] == pytest.approx(row["torchvision_ms"] / row["detlite_ms"])
    printed = capsys.readouterr().out.splitlines()
    assert "1 threads" in printed[0]
    assert printed[1].split()[1] == "case"
    assert printed[3].split()[1:6:2] == [row["case"], row["device"], row["dtype"]]


def test_fallback_operators(run, tmp_path, capsys):
    file = tmp_path / "fallback.json"
    options = ("--fallback", "--only", "match_243k_10", "--seconds", "0.01", "--json", file)
    assert run("ops", *options) == 0
    (row,) = json.loads(file.read_text())
    assert row["case"] == "match_243k_10"
    assert row["ratio"] == pytest.approx(row["fallback_ms"] / row["kernel_ms"])
    assert run("ops", "--fallback", "--only", "nonsense") == 2
    assert "no name of a case contains this" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_native", "dtypes"), [(True, ["float32", "bfloat16"]), (False, ["float32"])]
)
def test_bfloat16_is_measured_by_default_only_with_native_support(
    run, monkeypatch, is_native, dtypes
):
    calls = []
    for name in ("model", "train"):
        monkeypatch.setattr(
            f"benchmarks.__main__.benchmark_{name}",
            lambda *args, **options: (
                calls.append((args, options))
                or iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])
            ),
        )
    monkeypatch.setattr("benchmarks.__main__.has_bfloat16", lambda device: is_native)
    assert run("model", "--config", "some.yaml") == 0
    assert run("train", "--config", "some.yaml") == 0
    modes = calls[0][0][2]
    assert [mode for library, mode in modes if library == "torchvision"] == dtypes
    assert ("detlite", "optimize bfloat16") in modes or not is_native
    assert calls[1][1]["dtypes"] == tuple(dtypes)


def test_markdown_has_machine_command_and_table(run, tmp_path):
    file = tmp_path / "ops.md"
    options = ("--only", "batched_nms", "--seconds", "0.01", "--markdown", file)
    assert run("ops", *options) == 0
    machine, command, _, titles, _, row = file.read_text().splitlines()
    assert "threads of" in machine
    assert command == f"`python -m benchmarks ops {' '.join(map(str, options))}`"
    assert titles.startswith("| case")
    assert row.startswith("| batched_nms_4k_80")


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


def test_options_become_settings(run, monkeypatch, tmp_path):
    calls = {}

    def recorder(name):
        def record(*args, **options):
            calls[name] = (args, options)
            return iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])

        return record

    for name in ("model", "train", "scaling"):
        monkeypatch.setattr(f"benchmarks.__main__.benchmark_{name}", recorder(name))
    for name, key in (("write_trace", "trace"), ("plot_scaling", "plot")):
        monkeypatch.setattr(
            f"benchmarks.__main__.{name}", lambda *args, key=key: calls.update({key: args})
        )
    config, file = "some.yaml", tmp_path / "file"
    size = ("--size", 64, 96)

    options = ("--only", "detlite float32", "--detections", 12, "--threshold", 0.5, *size)
    assert run("model", "--config", config, *options, "SEED", 3) == 0
    inference = Inference(config, ("SEED", "3"), 1, (64, 96), 12, 0.5)
    assert calls["model"][0][:3] == (inference, 5, (("detlite", "float32"),))

    options = ("--objects", 500, "--real", "--dtype", "bfloat16", "--trace", file, "--batch", 4)
    assert run("train", "--config", config, *options, *size) == 0
    training = Training(config, (), 4, (64, 96), 500, True)
    assert calls["train"][0] == (training, 5)
    assert calls["train"][1]["dtypes"] == ("bfloat16",)
    assert calls["trace"] == (training, "bfloat16", file)

    options = ("--axes", "classes", "--plot", file, "--turns", 2)
    assert run("scaling", *options, *size) == 0
    assert calls["scaling"][0][2:4] == ({"classes": AXES["classes"]}, 2)
    assert calls["plot"][1] == file


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        (("model",), True),
        (("train",), False),
        (("model", "--freed-memory", "return"), False),
        (("train", "--freed-memory", "keep"), True),
    ],
)
def test_freed_memory_is_kept_like_in_the_commands(run, monkeypatch, options, keeps):
    calls = []
    monkeypatch.setattr("benchmarks.__main__.keep_freed_memory", lambda: calls.append("kept"))
    for name in ("model", "train"):
        monkeypatch.setattr(
            f"benchmarks.__main__.benchmark_{name}",
            lambda *args, **options: iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)]),
        )
    assert run(*options, "--config", "some.yaml") == 0
    assert calls == ["kept"] * keeps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("model", "--only", "tensorflow"), "--only tensorflow: no name of a mode contains this"),
        (("train", "--batch", "0"), "--batch 0: must be at least 1"),
        (("train", "--config", "no.yaml"), "no.yaml"),
        (("train", "--trace", "no/such.json"), "--trace no/such.json: No such file"),
        (("data", "--cpu-time"), "--cpu-time does not measure loader processes: use --workers 0"),
        (("scaling", "--markdown", "no/such.md"), "--markdown no/such.md: No such file"),
    ],
)
def test_invalid_options_of_the_other_benchmarks(run, capsys, options, message):
    assert run(*options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "no_such_case"), "--only no_such_case: no name of a case contains this"),
        (("--device", "cuda", "--cpu-time"), "--device cuda"),
    ],
)
def test_invalid_options_of_ops(run, capsys, options, message):
    assert run("ops", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--json", "no/such/rows.json"], "--json no/such/rows.json: No such file"),
    ],
)
def test_invalid_options_print_no_table(run, capsys, opts, message):
    assert run("ops", *opts) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert not captured.out
