"""When a run logs, saves, evaluates and ends, and its length in iterations, epochs and minutes."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from detlite.engine import schedule
from detlite.engine.schedule import Schedule
from tests.engine.toy import new_toy, read_final, read_metrics, without_times

SOLVER = {
    "MAX_ITER": 12, "MAX_EPOCHS": None, "MAX_MINUTES": None, "IMS_PER_BATCH": 4,
    "LOG_PERIOD": 5, "CHECKPOINT_PERIOD": 4, "TEST_PERIOD": 6,
}  # fmt: skip


def make(has_test_sets=True, images=10, **solver):
    """Return a schedule of 12 iterations, unless `solver` says otherwise."""
    return Schedule(SimpleNamespace(**SOLVER | solver), images, has_test_sets)


def limited(minutes=1, **solver):
    return make(MAX_ITER=None, MAX_MINUTES=minutes, **solver)


@pytest.mark.parametrize(
    ("iteration", "settings", "due"),
    [
        (4, {}, "save"),
        (5, {}, "log"),
        (6, {}, "save evaluate"),  # a model is saved before it is evaluated
        (11, {}, ""),
        (13, {}, "log save evaluate end"),
        (12, {"CHECKPOINT_PERIOD": 0, "TEST_PERIOD": 0}, "log save evaluate end"),
        (4, {"CHECKPOINT_PERIOD": 0}, ""),
        (6, {"TEST_PERIOD": 0}, ""),
        (6, {"has_test_sets": False}, ""),
        (1, {"signal": True}, "save interrupt"),
        (5, {"signal": True}, "log save interrupt"),
        (12, {"signal": True}, "log save evaluate end interrupt"),
        (1, {"finish": True, "has_test_sets": False}, "log save evaluate end"),
    ],
)
def test_after_an_iteration(iteration, settings, due):
    settings = dict(settings)
    signal, requested = settings.pop("signal", False), settings.pop("finish", False)
    schedule = make(**settings)
    schedule.start(0, has_final_checkpoint=False)
    if requested:
        schedule.finish()
        assert not schedule.is_last  # the current iteration ends first
    schedule.advance(iteration, signal)
    answers = {
        "log": schedule.log_due(),
        "save": schedule.save_due(),
        "evaluate": schedule.evaluation_due(),
        "end": schedule.is_last,
        "interrupt": schedule.is_interrupted,
    }
    assert [name for name, answer in answers.items() if answer] == due.split()


@pytest.mark.parametrize(
    ("finished", "final", "settings", "due"),
    [
        (5, False, {}, ""),
        (6, False, {}, "evaluate"),  # its evaluation may have been interrupted
        (6, False, {"has_test_sets": False}, ""),
        (12, True, {}, "evaluate end"),  # a finished run is only evaluated
        (12, True, {"has_test_sets": False}, "evaluate end"),
        (8, True, {}, "evaluate"),  # extended after 8 iterations
        (8, True, {"has_test_sets": False}, ""),
        (8, True, {"TEST_PERIOD": 0}, "evaluate"),
        (20, False, {}, "save evaluate end"),  # shortened: this is its final checkpoint
        (5, False, {"finish": True}, "save evaluate end"),
        (12, True, {"finish": True}, "evaluate end"),
    ],
)
def test_before_the_first_iteration(finished, final, settings, due):
    settings = dict(settings)
    requested = settings.pop("finish", False)
    schedule = make(**settings)
    if requested:
        schedule.finish()
    schedule.start(finished, final)
    answers = {
        "save": schedule.first_save_due(),
        "evaluate": schedule.first_evaluation_due(),
        "end": schedule.is_last,
    }
    assert [name for name, answer in answers.items() if answer] == due.split()


def test_a_request_during_an_evaluation_ends_the_run_after_one_more_iteration():
    schedule = make()
    schedule.start(0, has_final_checkpoint=False)
    schedule.advance(6, signal_received=False)
    schedule.finish()
    assert not schedule.is_last
    schedule.advance(7, signal_received=False)
    assert schedule.is_last


NO_ITER = ["SOLVER.MAX_ITER", None]
SECONDS = {"step": 10.0, "evaluation": 25.0}


@pytest.fixture
def clock(monkeypatch):
    """Clock that advances only by `clock.seconds += 1`."""
    clock = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(schedule.time, "monotonic", lambda: clock.seconds)
    return clock


@pytest.mark.parametrize(
    ("solver", "max_iter"),
    [({}, 12), ({"MAX_EPOCHS": 2}, 5), ({"MAX_EPOCHS": 0.5}, 2), ({"MAX_MINUTES": 2}, None)],
)
def test_lengths(solver, max_iter):
    length = make(MAX_ITER=None if solver else 12, **solver)
    assert length.max_iter == max_iter
    assert length.shortens_warmup == bool(solver)
    if max_iter:
        assert str(length) == f"{max_iter} iterations"
        assert [length.fraction(done) for done in (0, max_iter)] == [0, 1]
        assert length.state_dict() == {}


def advance(clock, length, *seconds):
    """Count iterations that take some seconds, and return whether each one is the last."""
    last = []
    for done, one in enumerate(seconds, 1):
        clock.seconds += one
        length.advance(done, signal_received=False)
        last.append(length.is_last)
    return last


def test_the_time_left_is_that_of_an_iteration_but_the_first(clock):
    length = make()
    for seconds, left in ((50, 11 * 50), (2, 10 * 2), (4, 9 * 3)):
        clock.seconds += seconds
        length.advance(length._finished + 1, signal_received=False)
        assert length.report() == {"eta_s": left}


@pytest.mark.parametrize(("batch", "warnings"), [(30, 0), (20, 1)])
def test_a_short_run_is_announced_early(clock, caplog, batch, warnings):
    """The first step takes 60 s and does not count: 120 others of 2 s follow in 5 minutes."""
    limit = limited(5, images=1000, IMS_PER_BATCH=batch)
    for done in range(1, 20):
        advance(clock, limit, 60 if done == 1 else 2)
        epochs = 121 * batch / 1000
        expected = f", about 121 steps in all, {epochs:.1f} epochs" if done > 1 else ""
        assert limit.outlook(done) == expected
    assert caplog.text.count("allows about 121 steps in all, 2.4 epochs, too few") == warnings


def test_the_fraction_is_that_of_the_time(clock):
    limit = limited()
    with limit.evaluating():  # does not count
        clock.seconds += 1000
    for done, fraction in enumerate((0.25, 0.5, 0.75), 1):
        assert advance(clock, limit, 15) == [False]
        assert limit.fraction(done) == pytest.approx(fraction)
        assert limit.report() == {"share": pytest.approx(fraction), "eta_s": 60 - 15 * done}
    assert advance(clock, limit, 15) == [True]


@pytest.mark.parametrize(
    "seconds",
    [
        [25, 25],  # a third iteration would end after 75 s
        [40, 5, 5, 6],  # libraries choose algorithms and compile in the first one
    ],
)
def test_no_iteration_starts_that_would_exceed_the_limit(clock, seconds):
    assert advance(clock, limited(), *seconds) == [False] * (len(seconds) - 1) + [True]


def test_a_resumed_run_continues_with_the_time_left(clock):
    limit = limited()
    advance(clock, limit, 16, 4)
    with limit.evaluating():
        clock.seconds += 5
    state = limit.state_dict()
    clock.seconds += 5000
    for minutes, fraction in ((1, 20 / 60), (2, 20 / 120)):
        resumed = limited(minutes)
        resumed.load_state_dict(state)
        assert resumed.fraction(2) == pytest.approx(fraction)
        advance(clock, resumed, 4)
        left = 60 * minutes - 24
        assert resumed.seconds_left == pytest.approx(left)
        # The slowest step, before the interruption, does not count.
        assert f", about {3 + left // 4} steps in all" in resumed.outlook(3)


def test_a_run_limited_in_iterations_continues_with_a_time_limit(clock):
    """Steps before the limit do not count as timed."""
    limit = limited()
    limit.load_state_dict(make().state_dict())
    assert limit.fraction(300) == 0
    assert advance(clock, limit, 25, 25) == [False, True]  # 10 seconds are left


@pytest.fixture
def run(train_toy, tmp_path, clock):
    """Return a function that trains a toy detector for a minute, in steps of ten seconds."""

    def start(folder, *opts, resume=False, fail_at=None):
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
            *NO_ITER, "SOLVER.MAX_MINUTES", 1, "SOLVER.LR_SCHEDULE", "cosine",
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
    final = read_final(tmp_path / "run").training
    assert final["run_length"]["seconds"] == pytest.approx(60)


def test_a_slow_machine_evaluates_after_two_thirds(run):
    """The period was planned for a faster machine; without one, no evaluation is planned."""
    for name, period, expected in (("slow", 100, [4, 6]), ("fast", 3, [3, 6]), ("end", 0, [6])):
        rows = run(name, "SOLVER.TEST_PERIOD", period)
        assert [row["iteration"] for row in rows if "evaluation" in row] == expected


@pytest.mark.parametrize(("period", "fail_at"), [(3, 4), (100, 6)])
def test_an_interrupted_run_resumes_exactly(run, tmp_path, fail_at, period):
    """With a long period, the model is evaluated after two thirds of the time."""
    opts = ["SOLVER.TEST_PERIOD", period]
    straight = run("straight", *opts)
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", *opts, fail_at=fail_at)
    resumed = run("interrupted", *opts, resume=True)
    assert list(map(without_times, resumed)) == list(map(without_times, straight))
    ours, theirs = (read_final(tmp_path / name) for name in ("interrupted", "straight"))
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    torch.testing.assert_close(ours.training["run_length"], theirs.training["run_length"])


RANKS = """
import json, time
from types import SimpleNamespace
from detlite.distributed import all_gather_objects, process_group, rank
from detlite.engine import schedule

now = [0.0]
schedule.time = SimpleNamespace(monotonic=lambda: now[0])
with process_group("cpu"):
    limit = schedule.Schedule(SimpleNamespace(**%s), 10, True)
    seen = []
    for done in range(1, 4):
        now[0] += 10 * (1 + 3 * rank())  # the clock of rank 1 does not count
        if rank() == 1 and done == 3:
            limit.finish()  # as a hook in one process
        limit.advance(done, rank() == 1 and done == 2)
        if limit.evaluation_due() or done == 1:
            with limit.evaluating():
                now[0] += 5 + rank()
        seen.append((limit.is_interrupted, limit.fraction(done), limit.is_last))
    states = all_gather_objects((seen, limit.state_dict()))
    if rank() == 0:
        print(json.dumps(states))
schedule.time = time
"""


def test_all_processes_use_the_clock_of_rank_0(in_two_processes):
    solver = SOLVER | {"MAX_ITER": None, "MAX_MINUTES": 1}
    first, second = json.loads(in_two_processes(RANKS % solver))
    assert first == second
    assert [row[0] for row in first[0]] == [False, True, False]
    assert [row[2] for row in first[0]] == [False, False, True]
    assert [row[1] for row in first[0]] == pytest.approx([10 / 60, 20 / 60, 30 / 60])
