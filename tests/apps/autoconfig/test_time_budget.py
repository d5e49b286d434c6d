"""Choice of the model and image size for a number of minutes, with a fake timer."""

import itertools
import re
from dataclasses import replace

import pytest
import torch

from detlite.apps.autoconfig.dataset_facts import DatasetFacts
from detlite.apps.autoconfig.rules import choose
from detlite.apps.autoconfig.time_budget import fit_to_minutes, mean_step_seconds
from detlite.config import ConfigError

from .builders import statistics

MINUTES = {"SOLVER.MAX_MINUTES": 15}


@pytest.fixture
def facts(cpu) -> DatasetFacts:
    """Images with objects that need 512 pixels and 2400 steps, on a machine with weights."""
    train = statistics(size=(512, 512), sides=(28, 60))
    return DatasetFacts(train, statistics(images=100), replace(cpu, pretrained=True))


def fit(facts, seconds, values=MINUTES, largest_fits=True):
    """Return fitted facts, the timed (batch, image size), and messages.

    A step takes `seconds` for four images of 512 pixels, and a twentieth of them without pixels.
    """
    timed, messages = [], []

    def timer(choices, limit):
        chosen = {one.key: one.value for one in choices} | values
        batch, size = chosen["SOLVER.IMS_PER_BATCH"], chosen["INPUT.MIN_SIZE_TEST"]
        if timed and not largest_fits:
            raise torch.OutOfMemoryError
        timed.append((batch, size))
        return seconds * (0.05 + 0.95 * batch * size**2 / (4 * 512**2))

    fitted = fit_to_minutes(facts, values, timer, messages.append)
    return fitted, timed, "\n".join(messages).splitlines()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (8.5, (False, 1.0)),  # 300 of 600 steps
        (9.0, (True, 0.5)),  # 1200 of 2400 steps
        (90.0, (True, 0.5)),  # none is fast enough: the fastest one
    ],
)
def test_the_largest_candidate_that_is_fast_enough_is_chosen(facts, seconds, expected):
    facts = replace(facts, train=statistics(size=(300, 300), sides=(28, 60)))  # batches of 4
    fitted, timed, messages = fit(facts, seconds, MINUTES)
    assert (fitted.single_images, fitted.shrink) == expected
    assert len(timed) <= 2
    assert messages[0] == "timing training steps on this machine, for about 60 seconds"
    choices = {one.key: one for one in choose(fitted, {})}
    assert choices["SOLVER.IMS_PER_BATCH"].value == (1 if fitted.single_images else 4)
    assert choices["MODEL.ROI_BOX_HEAD.PASSES"].value == (1 if fitted.single_images else 2)
    assert choices["SOLVER.MAX_MINUTES"].value == 15
    assert "SOLVER.MAX_ITER" not in choices
    steps = int(900 / fitted.step_seconds)
    assert f"about {steps} steps" in choices["SOLVER.MAX_MINUTES"].reason
    assert choices["SOLVER.WARMUP_ITERS"].value == min(100, max(steps // 10, 1))
    assert choices["SOLVER.TEST_PERIOD"].value <= steps


def test_times_between_two_timings_are_interpolated(facts):
    facts = replace(facts, train=statistics(images=40, size=(256, 256), sides=(60, 100)))
    _fitted, timed, messages = fit(facts, 30.0, {"SOLVER.MAX_MINUTES": 10})
    assert timed == [(1, 128), (4, 256)]
    assert [line.partition(" seconds")[0] for line in messages[1:-1]] == [
        "4 images of 256 pixels per step: 8.6", "1 image of 256 pixels per step: 3.3",
        "1 image of 192 pixels per step: 2.5", "1 image of 128 pixels per step: 1.9",
    ]  # fmt: skip
    _, timed, messages = fit(facts, 20.0, {"SOLVER.MAX_MINUTES": 1})
    assert messages[0].endswith("about 6 seconds")
    assert timed == [(1, 128)]  # the largest one would take too long


@pytest.mark.parametrize(
    ("sides", "size", "smallest"), [((12, 20), 640, 576), ((200, 400), 128, 96)]
)
def test_images_do_not_shrink_below_what_objects_need(cpu, sides, size, smallest):
    """Small objects have less than 28 pixels even at the maximum size; large ones need a scene."""
    train = statistics(size=(1024, 1024), sides=sides, keypoints=["nose"])
    facts = DatasetFacts(train, None, cpu)
    fitted, _, messages = fit(facts, 500.0)
    choices = {one.key: one for one in choose(fitted, {})}
    assert choices["INPUT.MIN_SIZE_TEST"].value == size
    assert min(choices["INPUT.MIN_SIZE_TRAIN"].value) == smallest
    found = re.match(r"15 min are short: (\d+) minutes allow half", messages[-1])
    assert found
    assert messages[-1] in choices["SOLVER.MAX_MINUTES"].reason
    _, _, messages = fit(facts, 500.0, {"SOLVER.MAX_MINUTES": int(found[1])})
    assert "are short" not in messages[-1]


@pytest.mark.parametrize("key", ["INPUT.MIN_SIZE_TRAIN", "INPUT.MIN_SIZE_TEST"])
def test_images_of_a_fixed_size_do_not_shrink(facts, key):
    values = {key: (640,) if key.endswith("TRAIN") else 640}
    fitted, *_ = fit(facts, 90.0, {**MINUTES, **values})
    assert (fitted.single_images, fitted.shrink) == (False, 1.0)


def test_batches_too_large_for_the_gpu_memory_are_skipped(facts, gpu):
    train = statistics(size=(256, 256), sides=(60, 100))
    facts = DatasetFacts(train, None, gpu)
    fitted, _, messages = fit(facts, 0.01, largest_fits=False)
    assert (fitted.single_images, fitted.shrink) == (True, 1.0)
    assert messages[1] == "16 images of 256 pixels per step: too large for the GPU memory"

    def refuse(*_):
        raise torch.OutOfMemoryError

    with pytest.raises(ConfigError, match=r"pixels per step do not fit into the GPU memory"):
        fit_to_minutes(facts, MINUTES, refuse, print)


def test_steps_are_timed_and_no_file_is_written(
    tiny_config, make_coco_dataset, tmp_path, monkeypatch
):
    annotations, images = make_coco_dataset()
    entry = {"name": "mine", "annotations": str(annotations), "images": str(images)}
    cfg = tiny_config(
        "DATASETS.CATALOG", [entry], "DATASETS.TRAIN", ["mine"], "SOLVER.IMS_PER_BATCH", 2,
        "DATALOADER.NUM_WORKERS", 0, "OUTPUT_DIR", str(tmp_path / "run"),
        "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "INPUT.MIN_SIZE_TRAIN", (64,),
    )  # fmt: skip
    ticks = (number**2 for number in itertools.count())
    monkeypatch.setattr("detlite.apps.autoconfig.time_budget.perf_counter", lambda: next(ticks))
    # The clock is read at the start, and before and after each step: 0, 1, 4, 9, 16, 25, 36, ...
    assert mean_step_seconds(cfg, max_seconds=99, steps=2) == 9
    assert not (tmp_path / "run").exists()
