"""Averages of losses and times, and the files of metrics."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detlite.engine.hooks.metrics import MetricsWriter
from detlite.engine.trainer import Meters
from detlite.errors import NonFiniteLossError

METRICS = {"loss": 1.5, "loss_a": 1.0, "time": 0.5, "data_time": 0.1, "eta_s": 61.0, "lr": 0.02}


def writer_in(folder, start=0):
    """Return a writer of a run that has finished `start` iterations."""
    writer = MetricsWriter(folder)
    writer.trainer = SimpleNamespace(
        iteration=start, schedule=SimpleNamespace(first_evaluation_due=lambda: False)
    )
    writer.before_train()
    return writer


def write(folder, start, iterations):
    writer = writer_in(folder, start)
    for iteration in iterations:
        writer.trainer.iteration = iteration
        writer.after_log(METRICS)
    writer.close()


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def test_meters_return_means_since_the_last_read(monkeypatch):
    clock = iter([0.0, 2.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr("detlite.engine.trainer.time.perf_counter", lambda: next(clock))
    meters = Meters()

    def step(iteration, a, b):
        with meters.timed("time"):
            losses = {"loss_a": torch.tensor(a), "loss_b": torch.tensor(b, dtype=torch.bfloat16)}
            meters.update(iteration, {n: v.requires_grad_() for n, v in losses.items()}, [])
            assert not any(values.requires_grad for *_, values in meters._steps)  # keeps no graph

    step(1, 0.5, 0.5)
    step(2, 2.5, 0.5)
    expected = {"loss": 2.0, "loss_a": 1.5, "loss_b": 0.5, "time": 2.0}
    assert meters.read() == expected
    step(3, 4.0, 1.0)
    expected = {"loss": 5.0, "loss_a": 4.0, "loss_b": 1.0, "time": 5.0}
    assert meters.read() == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_non_finite_loss_is_named(value):
    meters = Meters()
    assert meters.check() == []
    for iteration, loss in enumerate([1.0, value, math.nan], start=4):
        losses = {"loss_a": torch.tensor(0.5), "loss_b": torch.tensor(loss)}
        meters.update(iteration, losses, [10 * iteration, 7])
    message = rf"iteration 5: .*loss_a 0\.5, loss_b {value:.4g} on images \[50, 7\]\)"
    for read in (meters.check, lambda: meters.read()):
        with pytest.raises(NonFiniteLossError, match=message):
            read()


def test_lines_and_events(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    writer = writer_in(tmp_path)
    writer.trainer.iteration = 20
    writer.after_log(METRICS)
    evaluation = {"val": {"bbox": {"AP": 0.5, "APl": None, "per_category": {"cat": 0.5}}}}
    writer.after_evaluation(evaluation)
    assert iterations(tmp_path) == [20, 20]  # written before the end
    writer.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"iteration": 20, **METRICS}, {"iteration": 20, "evaluation": evaluation}]
    line = "iteration 20  loss 1.500 (a 1.000)  lr 0.02  0.500 s (data 0.100)  eta 0:01:01"
    assert line in caplog.text
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {f"training/{name}" for name in METRICS} | {
        "val/bbox/AP"
    }
    assert [(event.step, event.value) for event in events.Scalars("val/bbox/AP")] == [(20, 0.5)]


def test_metrics_are_not_written_through_a_link(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "other.jsonl")
    with pytest.raises(OSError, match="is a symbolic link"):
        write(tmp_path, 0, [1])
    assert not (tmp_path / "other.jsonl").exists()


def test_resuming_removes_lines_that_are_written_again(tmp_path):
    write(tmp_path, 0, [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "lo')  # the machine crashed
    write(tmp_path, 2, [3])
    assert iterations(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "junk", [b"\xff\x00\x93" * 40, b"\0" * 100, b"[1]", b"{}", b'{"iteration": "x"}', b"[" * 10**5],
    ids=["bytes", "zeros", "list", "empty", "other type", "deep"],
)  # fmt: skip
def test_damaged_lines_are_removed(tmp_path, caplog, junk):
    write(tmp_path, 0, [1, 2])
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + junk + b"\n" + second)
    write(tmp_path, 2, [3])
    assert iterations(tmp_path) == [1, 2, 3]
    assert "removed 1 damaged lines" in caplog.text


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("detlite.engine.hooks.metrics.is_main", lambda: False)
    write(tmp_path, 0, [1])
    assert not list(tmp_path.iterdir())


def test_the_first_step_is_logged_and_then_one_in_half_a_minute(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    now = [100.0]
    monkeypatch.setattr("detlite.engine.hooks.metrics.time.monotonic", lambda: now[0])
    writer = writer_in(tmp_path, start=20)
    trainer = writer.trainer
    trainer.cfg = SimpleNamespace(SOLVER=SimpleNamespace(LOG_PERIOD=10, IMS_PER_BATCH=4))
    trainer.train_set, trainer.schedule.outlook = range(8), lambda done: ", about 99 steps"
    for iteration in range(21, 41):
        now[0] += 9.0
        trainer.iteration = iteration
        writer.after_step({})
        if iteration % 10 == 0:
            writer.after_log(METRICS)
    writer.after_train()
    writer.close()
    lines = [line.getMessage() for line in caplog.records if "loss" not in line.getMessage()]
    assert lines[0] == "iteration 21  9.000 s per step of 4 images, about 99 steps"
    assert [int(line.split()[1]) for line in lines[:-1]] == [21, 25, 29, 34, 38]
    end = "trained 40 iterations, 20.0 epochs of 8 images; this process took 3.0 minutes"
    assert lines[-1] == end
