"""Length of runs in iterations, epochs and minutes."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from detlite.checkpoint.files import read_checkpoint
from detlite.config import ConfigError
from detlite.engine import time_limit
from detlite.engine.schedule import Duration, build_duration
from detlite.engine.time_limit import TimeLimit
from tests.engine.toy import new_toy, read_metrics, without_times

NO_ITER = ["SOLVER.MAX_ITER", None]
SECONDS = {"step": 10.0, "evaluation": 25.0}


@pytest.fixture
def clock(monkeypatch):
    """Clock that advances only by `clock.seconds += 1`."""
    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time_limit.time, "monotonic", lambda: clock.seconds)
    return clock


@pytest.mark.parametrize(
    ("keys", "images", "max_iter"),
    [
        (["SOLVER.MAX_ITER", 7], 10, 7),
        ([*NO_ITER, "SOLVER.MAX_EPOCHS", 2, "SOLVER.IMS_PER_BATCH", 4], 10, 5),
        ([*NO_ITER, "SOLVER.MAX_EPOCHS", 0.5, "SOLVER.IMS_PER_BATCH", 4], 10, 2),
        ([*NO_ITER, "SOLVER.MAX_MINUTES", 2], 10, None),
    ],
)
def test_lengths_from_the_config(make_cfg, keys, images, max_iter):
    length = build_duration(make_cfg(*keys), images)
    assert length.max_iter == max_iter
    assert length.shortens_warmup == (keys[1] is None)


def test_a_key_without_effect_causes_a_warning(make_cfg, caplog):
    build_duration(make_cfg("SOLVER.MAX_ITER", 7, "SOLVER.MINUTES_INCLUDE_TEST", True), 10)
    assert "has no effect without SOLVER.MAX_MINUTES" in caplog.text
    caplog.clear()
    build_duration(
        make_cfg(*NO_ITER, "SOLVER.MAX_MINUTES", 2, "SOLVER.MINUTES_INCLUDE_TEST", True), 10
    )
    assert not caplog.text


@pytest.mark.parametrize(("epochs_per_step", "warnings"), [(0.03, 0), (0.02, 1)])
def test_a_short_run_is_announced_early(clock, caplog, epochs_per_step, warnings):
    """The first step takes 60 s and does not count: 120 others of 2 s follow in 5 minutes."""
    limit = TimeLimit(5, epochs_per_step=epochs_per_step)
    for done in range(1, 20):
        clock.seconds += 60 if done == 1 else 2
        limit.advance()
        outlook = limit.outlook(done)
        epochs = 121 * epochs_per_step
        assert outlook == (f", about 121 steps in all, {epochs:.1f} epochs" if done > 1 else "")
    assert caplog.text.count("allows about 121 steps in all, 2.4 epochs, too few") == warnings


def test_iterations():
    length = Duration(4)
    assert [length.fraction(done) for done in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert [length.is_reached(done) for done in (3, 4, 5)] == [False, True, True]
    assert length.advance(False, True) == [False, True]
    assert length.state_dict() == length.report() == {}
    assert str(length) == "4 iterations"


def test_the_fraction_is_that_of_the_time(clock):
    limit = TimeLimit(1)
    for done, fraction in enumerate((0.25, 0.5, 0.75), 1):
        clock.seconds += 15
        assert limit.advance(False) == [False]
        assert limit.fraction(done) == pytest.approx(fraction)
        assert limit.report() == {"share": pytest.approx(fraction), "eta_s": 60 - 15 * done}
        assert limit.is_reached(done) is False
    clock.seconds += 15
    limit.advance(False)
    assert limit.is_reached(4)


def test_no_iteration_starts_that_would_exceed_the_limit(clock):
    limit = TimeLimit(1)
    for done, last in ((1, False), (2, True)):  # a third one would end after 75 s
        clock.seconds += 25
        limit.advance(False)
        assert limit.is_reached(done) is last


def test_a_slow_first_iteration_does_not_end_the_run(clock):
    """Libraries choose algorithms and compile in it."""
    limit = TimeLimit(1)
    for done, (seconds, last) in enumerate(((40, False), (5, False), (5, False), (6, True)), 1):
        clock.seconds += seconds
        limit.advance(False)
        assert limit.is_reached(done) is last


def test_evaluations_do_not_count_by_default(clock):
    limit = TimeLimit(1)
    with limit.evaluating():
        clock.seconds += 1000
    clock.seconds += 6
    limit.advance(False)
    assert limit.fraction(1) == pytest.approx(0.1)
    assert not limit.evaluation_needed


def test_evaluations_count_on_request(clock):
    limit = TimeLimit(1, include_evaluation=True)
    clock.seconds += 20
    limit.advance(False)
    assert not limit.evaluation_needed
    clock.seconds += 10
    limit.advance(False)
    assert limit.evaluation_needed  # half of the time
    with limit.evaluating():
        clock.seconds += 10
    clock.seconds += 10
    limit.advance(False)
    assert not limit.evaluation_needed
    # 50 s are used, and 10 are reserved for the last evaluation.
    assert limit.report() == {"share": 1.0, "eta_s": 0.0}
    assert limit.is_reached(3)


def test_long_evaluations_cause_a_warning(clock, caplog):
    limit = TimeLimit(1, include_evaluation=True)
    for seconds in (29, 31):
        assert "more than half" not in caplog.text
        with limit.evaluating():
            clock.seconds += seconds
    assert "takes 0.52 minutes, more than half of SOLVER.MAX_MINUTES" in caplog.text


def test_a_resumed_run_continues_with_the_time_left(clock):
    limit = TimeLimit(1, include_evaluation=True)
    for _ in range(2):
        clock.seconds += 10
        limit.advance(False)
    with limit.evaluating():
        clock.seconds += 5
    clock.seconds += 1
    limit.advance(False)
    state = limit.state_dict()
    clock.seconds += 5000
    resumed = TimeLimit(1, include_evaluation=True)
    resumed.load_state_dict(state)
    for one in (limit, resumed):
        assert one.seconds_left == pytest.approx(60 - 26 - 5)
    assert resumed.fraction(3) == limit.fraction(3) == pytest.approx(26 / 55)
    longer = TimeLimit(2, include_evaluation=True)
    longer.load_state_dict(state)
    assert longer.fraction(3) == pytest.approx(26 / 115)
    clock.seconds += 4
    resumed.advance(False)
    assert resumed.fraction(4) == pytest.approx(30 / 55)


def test_a_run_limited_in_iterations_continues_with_a_time_limit(clock):
    """Steps before the limit do not count as timed."""
    limit = TimeLimit(1)
    limit.load_state_dict(Duration(300).state_dict())
    for done, fraction in ((301, 0), (302, 25 / 60)):
        assert limit.fraction(done - 1) == pytest.approx(fraction)
        assert not limit.is_reached(done - 1)
        clock.seconds += 25
        limit.advance(False)
    assert limit.is_reached(302)  # 10 seconds are left


def test_evaluations_before_a_change_of_the_keys_are_not_subtracted(clock):
    limit = TimeLimit(1)
    for _ in range(3):
        clock.seconds += 10
        limit.advance(False)
    with limit.evaluating():
        clock.seconds += 1000
    since = TimeLimit(20, include_evaluation=True)
    since.load_state_dict(limit.state_dict())
    clock.seconds += 10
    since.advance(False)
    assert since.seconds_left == pytest.approx(1200 - 40 - 1000)
    assert since.report()["share"] == pytest.approx(40 / 200)
    for _ in range(15):
        clock.seconds += 10
        since.advance(False)
    assert not since.is_reached(19)  # one more of ten seconds
    clock.seconds += 5
    since.advance(False)
    assert since.is_reached(20)


@pytest.fixture
def run(train_toy, tmp_path, clock):
    """Return a function that trains a toy detector for some minutes, in steps of ten seconds."""

    def start(folder, *opts, resume=False, fail_at=None, minutes=1):
        model = new_toy()
        forward, detect, calls = model.forward, model.detect, []

        def timed(*args):
            calls.append(args)
            if len(calls) == fail_at:
                raise KeyboardInterrupt
            clock.seconds += SECONDS["step"]
            return forward(*args)

        def timed_detect(*args):
            clock.seconds += SECONDS["evaluation"] / 4  # batches of 7 images
            return detect(*args)

        model.forward, model.detect = timed, timed_detect
        train_toy(
            *NO_ITER, "SOLVER.MAX_MINUTES", minutes, "SOLVER.LR_SCHEDULE", "cosine",
            "SOLVER.CHECKPOINT_PERIOD", 1, "OUTPUT_DIR", str(tmp_path / folder), *opts,
            model=model, resume=resume,
        )  # fmt: skip
        return read_metrics(tmp_path / folder, "iteration")

    return start


def test_a_time_limit_determines_the_schedule(run, tmp_path):
    rows = run("run", "SOLVER.WARMUP_ITERS", 0)
    training = [row for row in rows if "loss" in row]
    assert [row["iteration"] for row in training] == [1, 2, 3, 4, 5, 6]
    assert [row["share"] for row in training] == pytest.approx([n / 6 for n in range(1, 7)])
    expected = [0.05 * (1 + math.cos(math.pi * n / 6)) for n in range(6)]
    assert [row["lr"] for row in training] == pytest.approx(expected)
    assert [row["eta_s"] for row in training] == pytest.approx([50, 40, 30, 20, 10, 0])
    final = read_checkpoint(tmp_path / "run" / "model_final.pth").training
    assert final["run_length"]["seconds"] == pytest.approx(60)
    assert final["run_length"]["fraction"] == training[-1]["share"]


def test_the_last_evaluation_is_within_the_limit_on_request(run, clock):
    begin = clock.seconds
    rows = run("run", "SOLVER.MINUTES_INCLUDE_TEST", True, minutes=2)
    evaluated = [row["iteration"] for row in rows if "evaluation" in row]
    # 60 s of steps, an evaluation of 25 s, a step, and the last evaluation.
    assert evaluated == [6, 7]
    assert clock.seconds - begin == pytest.approx(120)
    clock.seconds += 7
    begin = clock.seconds
    rows = run("apart", minutes=2)
    assert [row["iteration"] for row in rows if "evaluation" in row] == [12]
    assert clock.seconds - begin == pytest.approx(145)


def test_a_slow_machine_evaluates_after_two_thirds(run):
    """The period was planned for a faster machine; without one, no evaluation is planned."""
    for name, period, expected in (("slow", 100, [4, 6]), ("fast", 3, [3, 6]), ("end", 0, [6])):
        rows = run(name, "SOLVER.TEST_PERIOD", period)
        assert [row["iteration"] for row in rows if "evaluation" in row] == expected


@pytest.mark.parametrize(
    ("period", "with_test", "fail_at"), [(3, False, 4), (3, True, 7), (0, True, 2), (0, True, 7)]
)
def test_an_interrupted_run_resumes_exactly(run, tmp_path, fail_at, period, with_test):
    """The model is evaluated halfway, after iteration 6, if there is no period."""
    opts = ["SOLVER.TEST_PERIOD", period, "SOLVER.MINUTES_INCLUDE_TEST", with_test]
    straight = run("straight", *opts, minutes=2)
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", *opts, fail_at=fail_at, minutes=2)
    resumed = run("interrupted", *opts, resume=True, minutes=2)
    assert list(map(without_times, resumed)) == list(map(without_times, straight))
    ours, theirs = (
        read_checkpoint(tmp_path / name / "model_final.pth") for name in ("interrupted", "straight")
    )
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    torch.testing.assert_close(ours.training["run_length"], theirs.training["run_length"])


def test_a_finished_run_only_evaluates(run):
    before = run("run")
    assert run("run", resume=True) == before


def test_more_minutes_use_the_learning_rate_of_the_longer_run(run):
    run("run", "SOLVER.WARMUP_ITERS", 0)
    rows = run("run", "SOLVER.WARMUP_ITERS", 0, resume=True, minutes=2)
    rates = [row["lr"] for row in rows if "loss" in row]
    assert len(rates) == 12
    expected = [0.05 * (1 + math.cos(math.pi * n / 12)) for n in range(6, 12)]
    assert rates[6:] == pytest.approx(expected)


def test_steps_in_iterations_are_refused_with_a_time_limit(run):
    with pytest.raises(ConfigError, match=r"STEPS \(3,\) are iterations.*LR_SCHEDULE cosine"):
        run("run", "SOLVER.LR_SCHEDULE", "multistep")


RANKS = """
import json, time
from types import SimpleNamespace
from detlite.distributed import all_gather_objects, process_group, rank
from detlite.engine import time_limit

now = [0.0]
time_limit.time = SimpleNamespace(monotonic=lambda: now[0])
with process_group("cpu"):
    limit = time_limit.TimeLimit(1, include_evaluation=True)
    seen = []
    for done in range(1, 4):
        now[0] += 10 * (1 + 3 * rank())  # the clock of rank 1 does not count
        [stops] = limit.advance(rank() == 1 and done == 2)
        if limit.evaluation_needed or done == 1:
            with limit.evaluating():
                now[0] += 5 + rank()
        seen.append((stops, limit.fraction(done), limit.is_reached(done)))
    states = all_gather_objects((seen, {**limit.state_dict(), "shares": None}))
    if rank() == 0:
        print(json.dumps(states))
time_limit.time = time
"""


def test_all_processes_use_the_clock_of_rank_0(in_two_processes):
    first, second = json.loads(in_two_processes(RANKS))
    assert first == second
    assert [row[0] for row in first[0]] == [False, True, False]
    assert [row[1] for row in first[0]] == pytest.approx([10 / 60, 25 / 55, 35 / 55])
