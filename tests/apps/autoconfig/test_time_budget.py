"""Choice of the model and image size for a number of minutes, with a fake timer."""

import itertools
import re
from dataclasses import replace

import pytest
import torch
import yaml

from detlite.apps.autoconfig.dataset_facts import DatasetFacts
from detlite.apps.autoconfig.rules import choose
from detlite.apps.autoconfig.time_budget import fit_to_minutes, step_seconds
from detlite.apps.autoconfig.yaml_text import config_text, dataset_choices
from detlite.apps.dataset_formats import Source
from detlite.config import ConfigError, load_config
from tests.apps.autoconfig.test_rules import statistics

MINUTES = {"SOLVER.MAX_MINUTES": 15}


@pytest.fixture
def facts(cpu) -> DatasetFacts:
    """Images with objects that need 512 pixels and 2400 steps, on a machine with weights."""
    train = statistics(size=(512, 512), sides=(28, 60))
    return DatasetFacts(train, statistics(images=100), replace(cpu, pretrained=True))


class FakeTimer:
    """Returns the seconds of a step by model and image size; each call takes `spent` seconds."""

    def __init__(self, full: float, small: float, spent: float = 1.0) -> None:
        self.full, self.small, self.spent = full, small, spent
        self.now = 0.0
        self.timed: list[tuple[bool, float]] = []

    def __call__(self, facts: DatasetFacts, choices: object) -> float:
        self.now += self.spent
        self.timed.append((facts.small, facts.shrink))
        return (self.small if facts.small else self.full) * facts.shrink**2


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((0.75, 0.125), (False, 1.0)),  # 1200 steps in 15 minutes, half of the recommended ones
        ((0.76, 0.125), (False, 0.75)),
        ((4.0, 1.6), (True, 0.75)),
        ((9.0, 6.0), (True, 0.5)),
        ((90.0, 40.0), (True, 0.5)),  # none is fast enough: the fastest one
    ],
)
def test_the_largest_model_that_is_fast_enough_is_chosen(facts, seconds, expected):
    timer = FakeTimer(*seconds)
    fitted = fit_to_minutes(facts, MINUTES, timer, clock=lambda: timer.now)
    assert (fitted.small, fitted.shrink) == expected
    assert timer.timed[-1] == expected  # none is timed after it
    choices = {one.key: one for one in choose(fitted)}
    assert choices["SOLVER.MAX_MINUTES"].value == 15
    assert "SOLVER.MAX_ITER" not in choices
    steps = int(900 / fitted.step_seconds)
    assert f"about {steps} steps" in choices["SOLVER.MAX_MINUTES"].reason
    assert choices["SOLVER.WARMUP_ITERS"].value == min(100, max(steps // 10, 1))
    assert choices["SOLVER.TEST_PERIOD"].value <= steps


def test_images_and_anchors_shrink_together(facts):
    before, after = (
        {one.key: one.value for one in choose(replace(facts, shrink=shrink))}
        for shrink in (1.0, 0.5)
    )
    assert after["INPUT.MIN_SIZE_TEST"] - before["INPUT.MIN_SIZE_TEST"] / 2 < 32  # rounded up
    first, second = (str(one["MODEL.RPN.ANCHOR_SIZES"]) for one in (before, after))
    assert first != second


@pytest.mark.parametrize(("sides", "size", "shrink"), [((12, 20), 640, 1), ((200, 400), 192, 0.75)])
def test_images_do_not_shrink_below_what_objects_need(cpu, sides, size, shrink):
    """Small objects have less than 28 pixels even at the maximum size; large ones need a scene."""
    train, messages = statistics(size=(1024, 1024), sides=sides, keypoints=["nose"]), []
    facts, timer = DatasetFacts(train, None, cpu), FakeTimer(90.0, 40.0)

    def fit(minutes: int) -> DatasetFacts:
        values = {"SOLVER.MAX_MINUTES": minutes}
        return fit_to_minutes(facts, values, timer, messages.append, clock=lambda: timer.now)

    choices = {one.key: one for one in choose(fit(15))}
    assert choices["INPUT.MIN_SIZE_TEST"].value == size
    assert timer.timed[-1] == (False, shrink)
    assert messages[-1].startswith("15 minutes are short: about ")
    assert messages[-1] in choices["SOLVER.MAX_MINUTES"].reason
    found = re.search(r"size; (\d+) minutes allow half", messages[-1])
    assert found
    fit(int(found[1]))
    assert "are short" not in messages[-1]


def test_after_a_minute_only_the_last_candidate_is_timed(facts):
    timer = FakeTimer(90.0, 40.0, spent=70.0)
    fitted = fit_to_minutes(facts, MINUTES, timer, clock=lambda: timer.now)
    assert timer.timed == [(False, 1.0), (True, 0.5)]
    assert fitted.step_seconds == 10.0


def test_without_pretrained_weights_only_images_shrink(facts):
    timer = FakeTimer(90.0, 0.1)
    without = replace(facts, machine=replace(facts.machine, pretrained=False))
    fitted = fit_to_minutes(without, MINUTES, timer, clock=lambda: timer.now)
    assert timer.timed == [(False, 1.0), (False, 0.75), (False, 0.5)]
    assert not fitted.small


@pytest.mark.parametrize("key", ["INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"])
def test_images_of_a_fixed_size_do_not_shrink(facts, key):
    values = {key: (640,) if key.endswith("TRAIN") else 640}
    timer = FakeTimer(90.0, 40.0)
    fit_to_minutes(facts, {**MINUTES, **values}, timer, clock=lambda: timer.now)
    assert timer.timed == [(False, 1.0), (True, 1.0)]


def test_models_too_large_for_the_gpu_memory_are_skipped(facts):
    timer = FakeTimer(0.1, 0.1)

    def out_of_memory_above(shrink: float):
        def seconds(facts: DatasetFacts, choices: object) -> float:
            if facts.shrink > shrink:
                raise torch.OutOfMemoryError
            return timer(facts, choices)

        return seconds

    fitted = fit_to_minutes(facts, MINUTES, out_of_memory_above(0.75), clock=lambda: timer.now)
    assert (fitted.small, fitted.shrink) == (False, 0.75)
    assert fitted.minutes is not None
    assert "the model: too large for the GPU memory" in fitted.minutes[1]
    with pytest.raises(ConfigError, match="no model fits into the GPU memory"):
        fit_to_minutes(facts, MINUTES, out_of_memory_above(0.1), clock=lambda: timer.now)


def test_the_config_of_the_small_model(facts, tmp_path):
    timer = FakeTimer(9.0, 6.0)
    fitted = fit_to_minutes(facts, MINUTES, timer, clock=lambda: timer.now)
    sets = {"train": Source(tmp_path / "train.json", tmp_path / "images")}
    text = config_text(
        [*dataset_choices(sets, "invented"), *choose(fitted)], fitted.summary, fitted.base
    )
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    cfg = load_config(file)
    assert cfg.MODEL.RPN.RPN_HEAD == "SeparableRPNHead"
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (15, None)
    assert cfg.MODEL.ROI_MASK_HEAD.RESOLUTION == 14
    assert yaml.safe_load(text)["_BASE_"] == "_base_/small_fpn.yaml"
    comments = " ".join(text.replace("#", "").split())
    assert "the model: 9 seconds per step" in comments
    assert "the small model with images of 0.5 times their side: 1.5 seconds per step" in comments


def test_steps_are_timed_and_no_file_is_written(tiny_config, make_coco_dataset, tmp_path):
    annotations, images = make_coco_dataset()
    entry = {"name": "mine", "annotations": str(annotations), "images": str(images)}
    cfg = tiny_config(
        "DATASETS.CATALOG", [entry], "DATASETS.TRAIN", ["mine"], "SOLVER.IMS_PER_BATCH", 2,
        "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", str(tmp_path / "run"),
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "INPUT.MIN_SIZE_TRAIN", (64,),
    )  # fmt: skip
    ticks = (number**2 for number in itertools.count())
    # The clock is read before and after each step: 0, 1, 4, 9, 16, 25, ...
    assert step_seconds(cfg, steps=2, warm_up=1, clock=lambda: next(ticks)) == [5, 9]
    assert not (tmp_path / "run").exists()
