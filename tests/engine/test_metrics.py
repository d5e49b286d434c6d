from __future__ import annotations

import json
import logging
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detlite.engine.metrics import Meters, MetricsWriter, setup_logging

STEP = {"loss": 1.5, "loss_a": 1.0, "lr": 0.02, "time": 0.5, "data_time": 0.1, "eta_s": 61.0}


@pytest.fixture
def root_logger():
    """The root logger, with its handlers put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        handler.close()
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logging.captureWarnings(False)


def write(folder, start, iterations):
    writer = MetricsWriter(folder, start)
    for iteration in iterations:
        writer.training(iteration, STEP)
    writer.close()


def iterations(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration"] for line in lines]


def test_meters_give_means_since_the_last_reading():
    meters = Meters(max_iter=10)
    for loss in (1.0, 3.0):
        meters.update({"loss": loss, "time": 2.0})
    assert meters.read(2) == {"loss": 2.0, "time": 2.0, "eta_s": 16.0}
    meters.update({"loss": 5.0, "time": 5.0})
    assert meters.read(3) == {"loss": 5.0, "time": 5.0, "eta_s": 21.0}


def test_meters_measure_time():
    meters = Meters(max_iter=2)
    for _ in range(2):
        with meters.timed("time"):
            time.sleep(0.01)
        meters.update({})
    assert 0.01 <= meters.read(2)["time"] < 0.1


def test_lines_and_events(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    writer = MetricsWriter(tmp_path, 0)
    writer.training(20, STEP)
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
    writer.training(1, STEP)
    assert iterations(tmp_path) == [1]
    writer.close()


def test_resuming_drops_what_is_done_again(tmp_path):
    write(tmp_path, 0, [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "lo')  # the machine went down
    write(tmp_path, 2, [3])
    assert iterations(tmp_path) == [1, 2, 3]


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("detlite.engine.metrics.is_main", lambda: False)
    write(tmp_path, 0, [1])
    assert not list(tmp_path.iterdir())


def test_log_goes_to_console_and_file_and_appends(tmp_path, root_logger, capsys):
    for message in ("first", "second"):
        setup_logging(tmp_path / "run")
        logging.getLogger("detlite.engine").info(message)
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "first" in text
    assert "second" in text
    assert "second" in capsys.readouterr().out


def test_other_ranks_log_warnings_to_the_console_alone(tmp_path, root_logger, monkeypatch, capsys):
    monkeypatch.setattr("detlite.engine.metrics.is_main", lambda: False)
    setup_logging(tmp_path / "run")
    logging.getLogger("detlite").info("quiet")
    logging.getLogger("detlite").warning("loud")
    out = capsys.readouterr().out
    assert "quiet" not in out
    assert "loud" in out
    assert not (tmp_path / "run").exists()
