"""Which model and which size of pictures are chosen for some minutes, by a made-up timer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import yaml

from detlite.apps.autoconfig import Facts, choose, config_text, fit, places
from detlite.apps.dataset_formats import Source
from detlite.config import ConfigError, load_config
from tests.apps.autoconfig.test_rules import statistics


@pytest.fixture
def facts(cpu) -> Facts:
    """Pictures whose objects want 512 pixels, and 2400 steps of one, on a machine with weights."""
    found = statistics(size=(512, 512), sides=(28, 60))
    return Facts(found, statistics(pictures=100), replace(cpu, pretrained=True))


class FakeTimer:
    """Seconds of a step by the model and the size of its pictures; each call takes a while."""

    def __init__(self, full: float, small: float, spent: float = 1.0) -> None:
        self.full, self.small, self.spent = full, small, spent
        self.now = 0.0
        self.timed: list[tuple[bool, float]] = []

    def __call__(self, facts: Facts, choices: object) -> float:
        self.now += self.spent
        self.timed.append((facts.small, facts.shrink))
        return (self.small if facts.small else self.full) * facts.shrink**2


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ((0.75, 0.125), (False, 1.0)),  # 1200 steps in 15 minutes, half of those that are wanted
        ((0.76, 0.125), (False, 0.75)),
        ((4.0, 1.6), (True, 0.75)),
        ((9.0, 6.0), (True, 0.5)),
        ((90.0, 40.0), (True, 0.5)),  # nothing fits: the quickest
    ],
)
def test_the_best_that_fits_is_chosen(facts, seconds, wanted):
    timer = FakeTimer(*seconds)
    found = fit(facts, 15, timer, lambda: timer.now)
    assert (found.small, found.shrink) == wanted
    assert timer.timed[-1] == wanted  # and nothing is timed after it
    choices = {one.key: one for one in choose(found)}
    assert choices["SOLVER.MAX_MINUTES"].value == 15
    assert "SOLVER.MAX_ITER" not in choices
    have = int(900 / found.step_seconds)
    assert f"about {have} steps" in choices["SOLVER.MAX_MINUTES"].reason
    assert choices["SOLVER.WARMUP_ITERS"].value == min(100, max(have // 10, 1))
    assert choices["SOLVER.TEST_PERIOD"].value <= have


def test_pictures_and_anchors_shrink_together(facts):
    before, after = (
        {one.key: one.value for one in choose(replace(facts, shrink=shrink))}
        for shrink in (1.0, 0.5)
    )
    assert after["INPUT.MIN_SIZE_TEST"] - before["INPUT.MIN_SIZE_TEST"] / 2 < 32  # rounded up
    first, second = (str(one["MODEL.RPN.ANCHOR_SIZES"]) for one in (before, after))
    assert first != second


def test_timing_ends_after_a_minute_with_the_last(facts):
    timer = FakeTimer(90.0, 40.0, spent=70.0)
    found = fit(facts, 15, timer, lambda: timer.now)
    assert timer.timed == [(False, 1.0), (True, 0.5)]
    assert found.step_seconds == 10.0


def test_without_weights_the_model_stays(facts):
    timer = FakeTimer(90.0, 0.1)
    plain = replace(facts, machine=replace(facts.machine, pretrained=False))
    found = fit(plain, 15, timer, lambda: timer.now)
    assert timer.timed == [(False, 1.0), (False, 0.75), (False, 0.5)]
    assert not found.small


@pytest.mark.parametrize("key", ["INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"])
def test_pictures_of_a_given_size_do_not_shrink(facts, key):
    given = {key: (640,) if key.endswith("TRAIN") else 640}
    timer = FakeTimer(90.0, 40.0)
    fit(facts, 15, timer, lambda: timer.now, given)
    assert timer.timed == [(False, 1.0), (True, 1.0)]


def test_what_does_not_fit_in_the_memory_of_a_gpu_is_passed_over(facts):
    timer = FakeTimer(0.1, 0.1)

    def full(least: float):
        def seconds(facts: Facts, choices: object) -> float:
            if facts.shrink > least:
                raise torch.OutOfMemoryError
            return timer(facts, choices)

        return seconds

    found = fit(facts, 15, full(0.75), lambda: timer.now)
    assert (found.small, found.shrink) == (False, 0.75)
    assert found.minutes is not None
    assert "the model: too large for the GPU's memory" in found.minutes[1]
    with pytest.raises(ConfigError, match="no model fits in the GPU's memory"):
        fit(facts, 15, full(0.1), lambda: timer.now)


def test_the_config_is_that_of_the_small_model(facts, tmp_path):
    timer = FakeTimer(9.0, 6.0)
    found = fit(facts, 15, timer, lambda: timer.now)
    sets = {"train": Source(tmp_path / "train.json", tmp_path / "images")}
    text = config_text([*places(sets, "made up"), *choose(found)], found.summary, found.base)
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    cfg = load_config(file)
    assert cfg.MODEL.RPN.RPN_HEAD == "SeparableRPNHead"
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (15, None)
    assert cfg.MODEL.ROI_MASK_HEAD.RESOLUTION == 14
    assert yaml.safe_load(text)["_BASE_"] == "_base_/small_fpn.yaml"
    told = " ".join(text.replace("#", "").split())
    assert "the model: 9 seconds a step" in told
    assert "the small model, pictures of 0.5 of their side: 1.5 seconds a step" in told
