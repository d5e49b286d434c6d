"""When a run logs, saves, evaluates and ends: a table of cases."""

from types import SimpleNamespace

import pytest

from detlite.engine.schedule import Duration, RunSchedule

# Of a run of 12 iterations, unless it says otherwise.
PERIODS = {"LOG_PERIOD": 5, "CHECKPOINT_PERIOD": 4, "TEST_PERIOD": 6}


def make(max_iter=12, has_test_sets=True, needed=False, allowed=True, **periods):
    duration = Duration(max_iter)
    duration.evaluation_needed, duration.allows_evaluation = needed, allowed
    return RunSchedule(SimpleNamespace(**PERIODS | periods), duration, has_test_sets)


@pytest.mark.parametrize(
    ("iteration", "settings", "due"),
    [
        (1, {}, ""),
        (4, {}, "save"),
        (5, {}, "log"),
        (6, {}, "save evaluate"),  # a model is saved before it is evaluated
        (11, {}, ""),
        (12, {}, "log save evaluate end"),
        (13, {"max_iter": 12}, "log save evaluate end"),
        (12, {"CHECKPOINT_PERIOD": 0, "TEST_PERIOD": 0}, "log save evaluate end"),
        (4, {"CHECKPOINT_PERIOD": 0}, ""),
        (6, {"TEST_PERIOD": 0}, ""),
        (6, {"has_test_sets": False}, ""),
        (6, {"allowed": False}, ""),  # no time for evaluations other than the last one
        (12, {"allowed": False}, "log save evaluate end"),
        (1, {"needed": True}, "save evaluate"),  # to measure the time of an evaluation
        (1, {"needed": True, "has_test_sets": False}, ""),
        (1, {"signal": True}, "save interrupt"),
        (5, {"signal": True}, "log save interrupt"),
        (6, {"signal": True}, "save evaluate interrupt"),
        (12, {"signal": True}, "log save evaluate end interrupt"),
        (1, {"finish": True}, "log save evaluate end"),
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
        (0, False, {}, ""),
        (0, False, {"needed": True}, ""),
        (5, False, {}, ""),
        (6, False, {}, "evaluate"),  # its evaluation may have been interrupted
        (6, False, {"has_test_sets": False}, ""),
        (6, False, {"allowed": False}, ""),
        (12, True, {}, "evaluate end"),  # a finished run is only evaluated
        (12, True, {"has_test_sets": False}, "evaluate end"),
        (8, True, {}, "evaluate"),  # extended after 8 iterations
        (8, True, {"has_test_sets": False}, ""),
        (8, True, {"TEST_PERIOD": 0}, "evaluate"),
        (20, False, {}, "save evaluate end"),  # shortened: this is its final checkpoint
        (0, False, {"finish": True}, "save evaluate end"),
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
