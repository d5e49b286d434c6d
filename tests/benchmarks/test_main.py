"""`python -m benchmarks` on its cheapest cases."""

from __future__ import annotations

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
    """`run("ops", "--only", "nms")`: run the program here; its exit status."""
    return lambda *arguments: main([str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def threads():
    """The program sets how many threads torch uses."""
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


def test_plain_operators_beside_the_kernels(run, tmp_path, capsys):
    file = tmp_path / "plain.json"
    options = ("--plain", "--only", "match_243k_10", "--seconds", "0.01", "--json", file)
    assert run("ops", *options) == 0
    (row,) = json.loads(file.read_text())
    assert row["case"] == "match_243k_10"
    assert row["ratio"] == pytest.approx(row["plain_ms"] / row["kernel_ms"])
    assert run("ops", "--plain", "--only", "nonsense") == 2
    assert "no case has that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("able", "formats"), [(True, ["float32", "bfloat16"]), (False, ["float32"])]
)
def test_bfloat16_is_measured_unasked_only_where_it_is_native(run, monkeypatch, able, formats):
    seen = []
    for name in ("model", "train"):
        monkeypatch.setattr(
            f"benchmarks.__main__.benchmark_{name}",
            lambda *args, **options: (
                seen.append((args, options))
                or iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])
            ),
        )
    monkeypatch.setattr("benchmarks.__main__.has_bfloat16", lambda device: able)
    assert run("model", "--config", "some.yaml") == 0
    assert run("train", "--config", "some.yaml") == 0
    ways = seen[0][0][2]
    assert [way for library, way in ways if library == "torchvision"] == formats
    assert ("detlite", "optimize bfloat16") in ways or not able
    assert seen[1][1]["dtypes"] == tuple(formats)


def test_a_table_is_written_with_its_command(run, tmp_path):
    file = tmp_path / "ops.md"
    options = ("--only", "batched_nms", "--seconds", "0.01", "--markdown", file)
    assert run("ops", *options) == 0
    measured_on, command, _, titles, _, row = file.read_text().splitlines()
    assert "threads of" in measured_on
    assert command == f"`python -m benchmarks ops {' '.join(map(str, options))}`"
    assert titles.startswith("| case")
    assert row.startswith("| batched_nms_4k_80")


def test_loading_beside_torchvision(run, repo_root, monkeypatch, capsys):
    monkeypatch.chdir(repo_root)
    options = ("--workers", 0, "--images", 2, "--turns", 1, "--cpu-time")
    sizes = ("INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MAX_SIZE_TRAIN", 96)
    assert run("data", *options, *sizes) == 0
    assert "| generated " in capsys.readouterr().out


def test_evaluation_beside_pycocotools(run, capsys):
    assert run("eval", "--images", 12, "--detections", 5) == 0
    printed = capsys.readouterr().out
    assert "| bbox " in printed
    assert "| segm " in printed


def test_every_command_measures_what_its_options_say(run, monkeypatch, tmp_path):
    seen = {}

    def recorded(name):
        def measured(*args, **options):
            seen[name] = (args, options)
            return iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)])

        return measured

    for name in ("model", "train", "scaling"):
        monkeypatch.setattr(f"benchmarks.__main__.benchmark_{name}", recorded(name))
    for name, key in (("write_trace", "trace"), ("plot_scaling", "plot")):
        monkeypatch.setattr(
            f"benchmarks.__main__.{name}", lambda *args, key=key: seen.update({key: args})
        )
    config, file = "some.yaml", tmp_path / "file"
    size = ("--size", 64, 96)

    options = ("--only", "detlite float32", "--detections", 12, "--threshold", 0.5, *size)
    assert run("model", "--config", config, *options, "SEED", 3) == 0
    inference = Inference(config, ("SEED", "3"), 1, (64, 96), 12, 0.5)
    assert seen["model"][0][:3] == (inference, 5, (("detlite", "float32"),))

    options = ("--objects", 500, "--real", "--dtype", "bfloat16", "--trace", file, "--batch", 4)
    assert run("train", "--config", config, *options, *size) == 0
    training = Training(config, (), 4, (64, 96), 500, True)
    assert seen["train"][0] == (training, 5)
    assert seen["train"][1]["dtypes"] == ("bfloat16",)
    assert seen["trace"] == (training, "bfloat16", file)

    options = ("--axes", "classes", "--plot", file, "--turns", 2)
    assert run("scaling", *options, *size) == 0
    assert seen["scaling"][0][2:4] == ({"classes": AXES["classes"]}, 2)
    assert seen["plot"][1] == file


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        (("model",), True),
        (("train",), False),
        (("model", "--freed-memory", "return"), False),
        (("train", "--freed-memory", "keep"), True),
    ],
)
def test_freed_memory_is_kept_where_the_command_does(run, monkeypatch, options, keeps):
    seen = []
    monkeypatch.setattr("benchmarks.__main__.keep_freed_memory", lambda: seen.append("kept"))
    for name in ("model", "train"):
        monkeypatch.setattr(
            f"benchmarks.__main__.benchmark_{name}",
            lambda *args, **options: iter([StepRow("detlite", "float32", 1.0, None, 1.0, 0.5)]),
        )
    assert run(*options, "--config", "some.yaml") == 0
    assert seen == ["kept"] * keeps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("model", "--only", "tensorflow"), "--only tensorflow: no way has that in its name"),
        (("train", "--batch", "0"), "--batch 0: at least one"),
        (("train", "--config", "no.yaml"), "no.yaml"),
        (("train", "--trace", "no/such.json"), "--trace no/such.json: No such file"),
        (("data", "--cpu-time"), "--cpu-time does not see loader processes: --workers 0"),
        (("scaling", "--markdown", "no/such.md"), "--markdown no/such.md: No such file"),
    ],
)
def test_bad_options_of_the_other_commands(run, capsys, options, message):
    assert run(*options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "no_such_case"), "--only no_such_case: no case has that in its name"),
        (("--device", "cuda", "--cpu-time"), "--device cuda"),
    ],
)
def test_bad_options_are_one_line_and_status_2(run, capsys, options, message):
    assert run("ops", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (["--threads", "0"], "--threads 0: at least one"),
        (["--json", "no/such/rows.json"], "--json no/such/rows.json: No such file"),
    ],
)
def test_options_that_cannot_be_followed(run, capsys, opts, message):
    assert run("ops", *opts) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert not captured.out
