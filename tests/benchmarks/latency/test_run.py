"""The latency benchmark, with processes that do not measure."""

import pytest

from benchmarks.latency import run
from benchmarks.latency.cases import PEERS, Settings
from benchmarks.latency.detlite_models import MODELS


def test_processes_take_turns(monkeypatch, tmp_path):
    requests, commands = [], []

    class Fake:
        def __init__(self, command, cores):
            self.mode = command[-1]

        def ask(self, **request):
            requests.append((self.mode, request))
            ms = [float(len(requests))] * (request.get("seconds", 0) > 0)
            return {"ms": ms, "detections": 40, "threshold": 0.5, "phases": {"backbone": 1.0}}

        def close(self):
            requests.append((self.mode, {"closed": True}))

    def record(command, *_):
        commands.append(command)
        return '{"load": 2.0}\n'

    monkeypatch.setattr(run, "Worker", Fake)
    monkeypatch.setattr(run, "_run", record)
    modes = ("float32", "bfloat16")
    work = tmp_path / "work"
    settings = Settings(work, None, ("small",), modes, (512,), (1,), 2, cold_rounds=0)
    rows = list(run.benchmark_latency(settings))
    # One request to load each model, then two rounds.
    assert [mode for mode, request in requests if "seconds" in request] == [*modes] * 3
    assert [(row.model, row.mode, row.cores, row.size) for row in rows] == [
        ("small", mode, 1, 512) for mode in modes
    ]
    assert (rows[0].calls, rows[0].ms) == (2, 4.0)  # of the third and fifth request
    assert rows[0].phases == {"backbone": 1.0}
    assert [request for _, request in requests[-2:]] == [{"closed": True}] * 2
    assert [command[3:] for command in commands] == [["write", str(work), "small"]]

    python = tmp_path / "python"
    settings = Settings(work, python, ("small",), ("float32",), (512,), (1,), 1, cold_rounds=2)
    rows = list(run.benchmark_latency(settings))
    modes = [row.mode for row in rows if row.model == PEERS[0] and row.size == 512]
    assert modes == ["float32, predict", "float32, compiled", "int8, predict", "int8, compiled"]
    assert [(row.model, row.calls, row.phases) for row in rows if row.size == 640] == [
        ("small", 2, {}),
        ("small", 2, {"load": 2.0}),
        *((peer, 2, {"load": 2.0}) for peer in PEERS),
    ]
    for name in MODELS:
        for file in run.files(tmp_path, name):
            file.touch()
    commands.clear()
    run.prepare(Settings(tmp_path, cores=(1,)))
    assert commands == []


def test_invalid_settings_and_failed_programs(tmp_path):
    with pytest.raises(ValueError, match="--sizes 500: must be a multiple of 32"):
        Settings(tmp_path, sizes=(500,), cores=(1,))
    with pytest.raises(ValueError, match="--cores 0: must be 1 to "):
        Settings(tmp_path, cores=(0,))
    with pytest.raises(RuntimeError, match="failed:\nwhy"):
        run._run(["sh", "-c", "echo why; exit 1"])
