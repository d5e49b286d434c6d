from __future__ import annotations

import contextlib
import json
import logging
import math
import time
import warnings
import weakref

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detlite.engine.hooks.metrics import Meters, MetricsWriter, NonFiniteLossError, logging_to

MEANS = {"loss": 1.5, "loss_a": 1.0, "time": 0.5, "data_time": 0.1, "eta_s": 61.0}
LR = {"lr": 0.02}
STEP = MEANS | LR


@pytest.fixture
def bare_root(monkeypatch):
    """Takes away the root logger's handlers, of which a command has none, and returns it."""

    def make():
        logger = logging.getLogger()
        monkeypatch.setattr(logger, "handlers", [])
        return logger

    return make


def write(folder, start, iterations):
    writer = MetricsWriter(folder, start)
    for iteration in iterations:
        writer.training(iteration, MEANS, LR)
    writer.close()


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def test_meters_give_means_since_the_last_reading(monkeypatch):
    clock = iter([0.0, 2.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr("detlite.engine.hooks.metrics.time.perf_counter", lambda: next(clock))
    meters = Meters(max_iter=10)

    def step(iteration, a, b):
        with meters.timed("time"):
            losses = {"loss_a": torch.tensor(a), "loss_b": torch.tensor(b, dtype=torch.bfloat16)}
            meters.update(iteration, losses, [])

    step(1, 0.5, 0.5)
    step(2, 2.5, 0.5)
    wanted = {"loss": 2.0, "loss_a": 1.5, "loss_b": 0.5, "time": 2.0, "eta_s": 16.0}
    assert meters.read(2) == wanted
    step(3, 4.0, 1.0)
    wanted = {"loss": 5.0, "loss_a": 4.0, "loss_b": 1.0, "time": 5.0, "eta_s": 21.0}
    assert meters.read(3) == wanted


def test_meters_measure_time():
    meters = Meters(max_iter=2)
    for iteration in (1, 2):
        with meters.timed("time"):
            time.sleep(0.01)
        meters.update(iteration, {"loss_a": torch.tensor(1.0)}, [])
    assert 0.01 <= meters.read(2)["time"] < 0.1


def test_meters_hold_no_graph():
    weight = torch.ones((), requires_grad=True)
    graph = weight * 2
    gone = weakref.ref(graph)
    meters = Meters(max_iter=2)
    meters.update(1, {"loss_a": graph}, [])
    del graph
    assert gone() is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_meters_name_the_first_loss_that_is_not_finite(value):
    meters = Meters(max_iter=9)
    assert meters.check() == []
    for iteration, loss in enumerate([1.0, value, math.nan], start=4):
        losses = {"loss_a": torch.tensor(0.5), "loss_b": torch.tensor(loss)}
        meters.update(iteration, losses, [10 * iteration, 7])
    message = rf"iteration 5: .*loss_a 0\.5, loss_b {value:.4g} on images \[50, 7\]\)"
    for read in (meters.check, lambda: meters.read(6)):
        with pytest.raises(NonFiniteLossError, match=message):
            read()


def test_the_batch_is_kept_and_named(tmp_path):
    kept = []

    def keep(iteration):
        kept.append(iteration)
        return tmp_path / "batch.pth"

    meters = Meters(9, keep)
    meters.update(3, {"loss_a": torch.tensor(1.0)}, [1])
    meters.check()
    meters.update(4, {"loss_a": torch.tensor(math.nan)}, [2])
    with pytest.raises(NonFiniteLossError, match=r"\(kept in .*batch\.pth: `detlite replay`"):
        meters.check()
    assert kept == [4]


def test_steps_that_were_all_skipped_have_no_means(tmp_path):
    means = Meters(9).read(1)
    assert means == {}
    writer = MetricsWriter(tmp_path, 0)
    writer.training(1, means, LR)
    writer.close()
    assert iterations(tmp_path) == []


def test_checking_keeps_what_is_to_be_read():
    meters = Meters(max_iter=2)
    with meters.timed("time"):
        meters.update(1, {"loss_a": torch.tensor(3.0)}, [])
    assert meters.check() == meters.check() == [[3.0]]
    assert meters.read(1)["loss"] == 3.0
    assert meters.check() == []


def test_lines_and_events(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    writer = MetricsWriter(tmp_path, 0)
    writer.training(20, MEANS, LR)
    evaluation = {"val": {"bbox": {"AP": 0.5, "APl": None, "per_category": {"cat": 0.5}}}}
    writer.evaluation(20, evaluation)
    writer.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"iteration": 20, **STEP}, {"iteration": 20, "evaluation": evaluation}]
    line = "iteration 20  loss 1.500 (a 1.000)  lr 0.02  0.500 s (data 0.100)  eta 0:01:01"
    assert line in caplog.text
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {f"training/{name}" for name in STEP} | {"val/bbox/AP"}
    assert [(event.step, event.value) for event in events.Scalars("val/bbox/AP")] == [(20, 0.5)]


def test_lines_are_there_before_the_end(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.training(1, MEANS, LR)
    assert iterations(tmp_path) == [1]
    writer.close()


def test_resuming_drops_what_is_done_again(tmp_path):
    write(tmp_path, 0, [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "lo')  # the machine went down
    write(tmp_path, 2, [3])
    assert iterations(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    "junk",
    [b"\xff\x00\x93" * 40, b"\0" * 100, b"[1]", b'"x"', b"{}", b'{"iteration": "x"}', b"[" * 10**5],
    ids=["bytes", "zeros", "list", "text", "empty", "other type", "deep"],
)
def test_damaged_lines_are_dropped_and_no_others(tmp_path, caplog, junk):
    write(tmp_path, 0, [1, 2])
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + junk + b"\n" + second)
    write(tmp_path, 2, [3])
    assert iterations(tmp_path) == [1, 2, 3]
    assert "dropped 1 lines that are damaged" in caplog.text


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("detlite.engine.hooks.metrics.is_main", lambda: False)
    write(tmp_path, 0, [1])
    assert not list(tmp_path.iterdir())


def test_log_goes_to_console_and_file_and_appends(tmp_path, bare_root, capsys):
    bare_root()
    for message in ("first", "second"):
        with logging_to(tmp_path / "run"):
            logging.getLogger("detlite.engine").info(message)
            warnings.warn(f"{message} warning", stacklevel=1)
    text = (tmp_path / "run" / "log.txt").read_text()
    out = capsys.readouterr().out
    for message in ("first", "second", "first warning", "second warning"):
        assert message in text
        assert message in out


@pytest.mark.parametrize("captured", [False, True])
def test_what_was_set_before_is_set_again(tmp_path, bare_root, capsys, captured):
    root_logger = bare_root()
    own = logging.NullHandler()
    root_logger.addHandler(own)
    logging.captureWarnings(captured)
    before = root_logger.level, warnings.showwarning
    try:
        with contextlib.suppress(ZeroDivisionError), logging_to(tmp_path):
            assert root_logger.handlers[0] is own
            logging.getLogger("detlite").info("told")
            _ = 1 / 0
        assert (root_logger.level, warnings.showwarning) == before
    finally:
        logging.captureWarnings(False)
    assert root_logger.handlers == [own]
    assert "told" in (tmp_path / "log.txt").read_text()
    assert capsys.readouterr().out == ""  # the caller's own handlers say where else it goes


def test_other_ranks_log_warnings_to_the_console_alone(tmp_path, bare_root, monkeypatch, capsys):
    bare_root()
    monkeypatch.setattr("detlite.engine.hooks.metrics.is_main", lambda: False)
    with logging_to(tmp_path / "run"):
        logging.getLogger("detlite").info("quiet")
        logging.getLogger("detlite").warning("loud")
    out = capsys.readouterr().out
    assert "quiet" not in out
    assert "loud" in out
    assert not (tmp_path / "run").exists()
