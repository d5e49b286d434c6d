"""The latency benchmark, with processes that do not measure."""

import pytest

from benchmarks.latency import run
from benchmarks.latency.cases import PEERS, Settings, core_numbers
from benchmarks.latency.detlite_models import MODELS


@pytest.fixture
def asked(monkeypatch):
    """Replace the processes by objects that record their requests."""
    requests = []

    class Fake:
        def __init__(self, command, cores):
            self.command, self.cores = command, cores

        def ask(self, **request):
            requests.append((self.command[5:], len(self.cores), request))
            ms = [float(len(requests))] * (request.get("seconds", 0) > 0)
            return {"ms": ms, "detections": 40, "threshold": 0.5, "phases": {"backbone": 1.0}}

        def close(self):
            requests.append((self.command[5:], len(self.cores), "closed"))

    monkeypatch.setattr(run, "Worker", Fake)
    return requests


@pytest.fixture
def ran(monkeypatch):
    """Replace other programs; return their commands."""
    commands = []

    def record(command, *_):
        commands.append(command)
        return '{"load": 2.0}\n'

    monkeypatch.setattr(run, "_run", record)
    return commands


def test_processes_take_turns(asked, ran, tmp_path):
    settings = Settings(
        tmp_path / "work", None, ("small",), ("float32", "bfloat16"), (512,), (1,), 2, cold_rounds=0
    )
    rows = list(run.benchmark_latency(settings))
    timed = [
        words[-1] for words, _, request in asked if request != "closed" and "seconds" in request
    ]
    # One request to load each model, then two rounds.
    assert timed == ["float32", "bfloat16"] * 3
    assert [(row.model, row.mode, row.cores, row.size) for row in rows] == [
        ("small", "float32", 1, 512),
        ("small", "bfloat16", 1, 512),
    ]
    assert rows[0].calls == 2
    assert rows[0].ms == 4.0  # of the third and fifth request
    assert rows[0].phases == {"backbone": 1.0}
    assert [request for _, _, request in asked[-2:]] == ["closed", "closed"]
    assert [command[3:] for command in ran] == [["write", str(tmp_path / "work"), "small"]]


def test_yolo_and_cold_starts(asked, ran, tmp_path):
    python = tmp_path / "python"
    settings = Settings(tmp_path, python, ("small",), ("float32",), (512,), (1,), 1, cold_rounds=2)
    rows = list(run.benchmark_latency(settings))
    modes = [row.mode for row in rows if row.model == PEERS[0] and row.size == 512]
    assert modes == ["float32, predict", "float32, compiled", "int8, predict", "int8, compiled"]
    cold = [row for row in rows if row.size == 640]
    assert [(row.model, row.calls, row.phases) for row in cold] == [
        ("small", 2, {}),
        ("small", 2, {"load": 2.0}),
        *((peer, 2, {"load": 2.0}) for peer in PEERS),
    ]
    assert sum("predict" in command for command in ran) == 3  # one of them before the timed ones


def test_models_are_written_once(ran, tmp_path):
    for name in MODELS:
        for file in run.files(tmp_path, name):
            file.touch()
    run.prepare(Settings(tmp_path, cores=(1,)))
    assert ran == []
    assert (tmp_path / "image.jpg").exists()


def test_settings_are_checked(tmp_path):
    with pytest.raises(ValueError, match="--sizes 500: must be a multiple of 32"):
        Settings(tmp_path, sizes=(500,), cores=(1,))
    with pytest.raises(ValueError, match="--cores 0: must be 1 to "):
        Settings(tmp_path, cores=(0,))
    assert len(core_numbers(1)) == 1


def test_output_of_a_failed_program_is_reported():
    with pytest.raises(RuntimeError, match="failed:\nwhy"):
        run._run(["sh", "-c", "echo why; exit 1"])
