"""Runs that are as long as their minutes, or their epochs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import read_checkpoint
from detlite.engine import run_length as budget_module
from detlite.engine.rng import seed_all
from detlite.engine.run_length import Budget, TimeLimit, build_run_length
from detlite.engine.trainer import train

NO_ITER = ["SOLVER.MAX_ITER", None]
SECONDS = {"step": 10.0, "evaluation": 25.0}


@pytest.fixture
def clock(monkeypatch):
    """A clock that only goes on by `clock.seconds += 1`."""

    class Clock:
        seconds = 100.0

    monkeypatch.setattr(budget_module.time, "monotonic", lambda: Clock.seconds)
    return Clock


@pytest.mark.parametrize(
    ("keys", "images", "wanted"),
    [
        (["SOLVER.MAX_ITER", 7], 10, 7),
        ([*NO_ITER, "SOLVER.MAX_EPOCHS", 2, "SOLVER.IMS_PER_BATCH", 4], 10, 5),
        ([*NO_ITER, "SOLVER.MAX_EPOCHS", 0.5, "SOLVER.IMS_PER_BATCH", 4], 10, 2),
        ([*NO_ITER, "SOLVER.MAX_MINUTES", 2], 10, None),
    ],
)
def test_lengths_by_config(make_cfg, keys, images, wanted):
    budget = build_run_length(make_cfg(*keys), images)
    assert budget.max_iter == wanted
    assert budget.shortens_warmup == (keys[1] is None)


def test_minutes_that_are_not_counted_are_told(make_cfg, caplog):
    build_run_length(make_cfg("SOLVER.MAX_ITER", 7, "SOLVER.MINUTES_INCLUDE_TEST", True), 10)
    assert "means nothing without SOLVER.MAX_MINUTES" in caplog.text
    caplog.clear()
    build_run_length(
        make_cfg(*NO_ITER, "SOLVER.MAX_MINUTES", 2, "SOLVER.MINUTES_INCLUDE_TEST", True), 10
    )
    assert not caplog.text


def test_iterations():
    budget = Budget(4)
    assert [budget.share(done) for done in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert [budget.is_spent(done) for done in (3, 4, 5)] == [False, True, True]
    assert [budget.advance(stops) for stops in (False, True)] == [False, True]
    assert budget.state_dict() == budget.report() == {}
    assert str(budget) == "4 iterations"


def test_the_share_is_that_of_the_time(clock):
    budget = TimeLimit(1)
    for done, wanted in enumerate((0.25, 0.5, 0.75), 1):
        clock.seconds += 15
        assert not budget.advance(False)
        assert budget.share(done) == pytest.approx(wanted)
        assert budget.report() == {"share": pytest.approx(wanted), "eta_s": 60 - 15 * done}
        assert budget.is_spent(done) is False
    assert budget.share(0) == 0
    assert budget.share(1) == pytest.approx(0.25)  # what was put down stays
    clock.seconds += 15
    budget.advance(False)
    assert budget.is_spent(4)


def test_no_iteration_begins_that_cannot_end_in_time(clock):
    budget = TimeLimit(1)
    for done, last in ((1, False), (2, True)):  # a third would end after 75 s
        clock.seconds += 25
        budget.advance(False)
        assert budget.is_spent(done) is last


def test_a_slow_first_iteration_ends_no_run(clock):
    """Libraries choose and compile in it."""
    budget = TimeLimit(1)
    for done, (seconds, last) in enumerate(((40, False), (5, False), (5, False), (6, True)), 1):
        clock.seconds += seconds
        budget.advance(False)
        assert budget.is_spent(done) is last


def test_evaluations_do_not_count(clock):
    budget = TimeLimit(1)
    with budget.evaluating():
        clock.seconds += 1000
    clock.seconds += 6
    budget.advance(False)
    assert budget.share(1) == pytest.approx(0.1)
    assert not budget.wants_evaluation


def test_evaluations_count_if_asked(clock):
    budget = TimeLimit(1, with_evaluation=True)
    clock.seconds += 20
    budget.advance(False)
    assert not budget.wants_evaluation
    clock.seconds += 10
    budget.advance(False)
    assert budget.wants_evaluation  # half of the time
    with budget.evaluating():
        clock.seconds += 10
    clock.seconds += 10
    budget.advance(False)
    assert not budget.wants_evaluation
    # 50 s are spent, and 10 are kept for the last evaluation.
    assert budget.report() == {"share": 1.0, "eta_s": 0.0}
    assert budget.is_spent(3)


def test_evaluations_that_take_too_long_are_told(clock, caplog):
    budget = TimeLimit(1, with_evaluation=True)
    for seconds in (29, 31):
        assert "more than half" not in caplog.text
        with budget.evaluating():
            clock.seconds += seconds
    assert "takes 0.52 minutes, more than half of SOLVER.MAX_MINUTES" in caplog.text


def test_a_resumed_run_has_the_time_that_is_left(clock):
    budget = TimeLimit(1, with_evaluation=True)
    for _ in range(2):
        clock.seconds += 10
        budget.advance(False)
    with budget.evaluating():
        clock.seconds += 5
    clock.seconds += 1
    budget.advance(False)
    state = budget.state_dict()
    clock.seconds += 5000
    resumed = TimeLimit(1, with_evaluation=True)
    resumed.load_state_dict(state, 3)
    for one in (budget, resumed):
        assert one.seconds_left == pytest.approx(60 - 26 - 5)
    assert [resumed.share(done) for done in range(4)] == [budget.share(d) for d in range(4)]
    clock.seconds += 4
    resumed.advance(False)
    assert resumed.share(4) == pytest.approx(30 / 55)


def test_a_run_of_iterations_goes_on_by_the_clock(clock):
    budget = TimeLimit(1)
    budget.load_state_dict(Budget(9).state_dict(), 3)
    assert budget.share(3) == 0
    assert not budget.is_spent(3)
    clock.seconds += 30
    budget.advance(False)
    assert budget.share(4) == pytest.approx(0.5)


def test_steps_before_the_clock_say_nothing_of_how_long_one_takes(clock):
    budget = TimeLimit(1)
    budget.load_state_dict(Budget(300).state_dict(), 300)
    for done in (301, 302):
        assert not budget.is_spent(done - 1)
        clock.seconds += 25
        budget.advance(False)
    assert budget.is_spent(302)  # 10 seconds are left


def test_evaluations_that_were_not_in_the_minutes_are_not_taken_from_them(clock):
    budget = TimeLimit(1)
    for _ in range(3):
        clock.seconds += 10
        budget.advance(False)
    with budget.evaluating():
        clock.seconds += 1000
    since = TimeLimit(20, with_evaluation=True)
    since.load_state_dict(budget.state_dict(), 3)
    clock.seconds += 10
    since.advance(False)
    assert since.seconds_left == pytest.approx(1200 - 40 - 1000)
    assert since.report()["share"] == pytest.approx(40 / 200)
    for _ in range(15):
        clock.seconds += 10
        since.advance(False)
    assert not since.is_spent(19)  # one more of ten seconds
    clock.seconds += 5
    since.advance(False)
    assert since.is_spent(20)


@pytest.fixture
def run(make_cfg, make_sets, toy, tmp_path, clock):
    """Trains the toy detector for some minutes, in which a step takes ten seconds."""

    def start(folder, *opts, resume=False, fail_at=None, minutes=1):
        cfg = make_cfg(
            *NO_ITER, "SOLVER.MAX_MINUTES", minutes, "SOLVER.LR_SCHEDULE", "cosine",
            "SOLVER.CHECKPOINT_PERIOD", 1, "OUTPUT_DIR", str(tmp_path / folder), *opts,
        )  # fmt: skip
        train_set, test_sets = make_sets(cfg)
        torch.manual_seed(0)
        model = type(toy)()
        model.categories = train_set.categories
        forward, detect, calls = model.forward, model.detect, []

        def timed(*args):
            calls.append(args)
            if len(calls) == fail_at:
                raise KeyboardInterrupt
            clock.seconds += SECONDS["step"]
            return forward(*args)

        def timed_detect(*args):
            clock.seconds += SECONDS["evaluation"] / math.ceil(len(test_sets[0]) / 2)
            return detect(*args)

        model.forward, model.detect = timed, timed_detect
        seed_all(0)
        train(cfg, model, train_set, test_sets, resume)
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return start


def test_a_run_by_the_clock_ends_in_time_with_its_schedule(run, tmp_path):
    rows = run("run", "SOLVER.WARMUP_ITERS", 0)
    training = [row for row in rows if "loss" in row]
    assert [row["iteration"] for row in training] == [1, 2, 3, 4, 5, 6]
    assert [row["share"] for row in training] == pytest.approx([n / 6 for n in range(1, 7)])
    wanted = [0.05 * (1 + math.cos(math.pi * n / 6)) for n in range(6)]
    assert [row["lr"] for row in training] == pytest.approx(wanted)
    assert [row["eta_s"] for row in training] == pytest.approx([50, 40, 30, 20, 10, 0])
    final = read_checkpoint(tmp_path / "run" / "model_final.pth").training
    assert final["budget"]["seconds"] == pytest.approx(60)
    assert final["budget"]["shares"].tolist() == [row["share"] for row in training]


def test_the_last_evaluation_is_within_the_budget_if_asked(run, clock):
    begin = clock.seconds
    rows = run("run", "SOLVER.MINUTES_INCLUDE_TEST", True, minutes=2)
    evaluated = [row["iteration"] for row in rows if "evaluation" in row]
    # 60 s, 25 s, 10 s, and 25 s for the last one.
    assert evaluated == [6, 7]
    assert clock.seconds - begin == pytest.approx(120)
    clock.seconds += 7
    begin = clock.seconds
    rows = run("apart", minutes=2)
    assert [row["iteration"] for row in rows if "evaluation" in row] == [12]
    assert clock.seconds - begin == pytest.approx(145)


@pytest.mark.parametrize(("period", "with_test"), [(3, False), (3, True), (0, True)])
@pytest.mark.parametrize("fail_at", [2, 4, 7])
def test_a_broken_run_is_resumed_exactly(run, tmp_path, fail_at, period, with_test):
    """Without a period there is an evaluation at half time, after iteration 6."""
    opts = ["SOLVER.TEST_PERIOD", period, "SOLVER.MINUTES_INCLUDE_TEST", with_test]
    straight = run("straight", *opts, minutes=2)
    with pytest.raises(KeyboardInterrupt):
        run("broken", *opts, fail_at=fail_at, minutes=2)
    resumed = run("broken", *opts, resume=True, minutes=2)

    def timeless(row):
        return {name: value for name, value in row.items() if not name.endswith("time")}

    assert list(map(timeless, resumed)) == list(map(timeless, straight))
    ours, theirs = (
        read_checkpoint(tmp_path / name / "model_final.pth") for name in ("broken", "straight")
    )
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    torch.testing.assert_close(ours.training["budget"], theirs.training["budget"])


def test_a_finished_run_is_only_evaluated(run):
    before = run("run")
    assert run("run", resume=True) == before


def test_more_minutes_go_on(run):
    assert max(row["iteration"] for row in run("run")) == 6
    assert max(row["iteration"] for row in run("run", resume=True, minutes=1.5)) == 9


def test_more_minutes_train_at_the_rate_of_the_longer_run(run):
    run("run", "SOLVER.WARMUP_ITERS", 0)
    rows = run("run", "SOLVER.WARMUP_ITERS", 0, resume=True, minutes=2)
    rates = [row["lr"] for row in rows if "loss" in row]
    assert len(rates) == 12
    # The first of them is the one that was saved.
    wanted = [0.05 * (1 + math.cos(math.pi * n / 12)) for n in range(7, 12)]
    assert rates[7:] == pytest.approx(wanted)


def test_steps_in_iterations_are_refused(run):
    with pytest.raises(ConfigError, match=r"STEPS \(3,\) are iterations.*LR_SCHEDULE cosine"):
        run("run", "SOLVER.LR_SCHEDULE", "multistep")


RANKS = """
import json
from detlite.distributed import all_gather_objects, process_group, rank
from detlite.engine.hooks import run_length as budget_module

now = [0.0]
budget_module.time.monotonic = lambda: now[0]
with process_group("cpu"):
    budget = budget_module.TimeLimit(1, with_evaluation=True)
    seen = []
    for done in range(1, 4):
        now[0] += 10 * (1 + 3 * rank())  # the other one's clock is of no interest
        stops = budget.advance(rank() == 1 and done == 2)
        if budget.wants_evaluation or done == 1:
            with budget.evaluating():
                now[0] += 5 + rank()
        seen.append((stops, budget.share(done), budget.is_spent(done)))
    found = all_gather_objects((seen, {**budget.state_dict(), "shares": None}))
    if rank() == 0:
        print(json.dumps(found))
"""


def test_all_ranks_go_by_the_clock_of_the_first(in_two_processes):
    first, second = json.loads(in_two_processes(RANKS))
    assert first == second
    assert [row[0] for row in first[0]] == [False, True, False]
    assert [row[1] for row in first[0]] == pytest.approx([10 / 60, 25 / 55, 35 / 55])
