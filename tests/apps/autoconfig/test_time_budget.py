"""Choice of the model and image size for a number of minutes, with a fake timer."""

import itertools
import re
from dataclasses import replace
from statistics import mean

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


def fit(facts, seconds, values=MINUTES, batch_fits=True):
    """Return fitted facts, the timed batches, and messages.

    A step takes `seconds` for four images of 512 pixels, and a twentieth of them without pixels.
    """
    timed, messages = [], []

    def timer(choices, limit):
        chosen = {one.key: one.value for one in choices} | values
        batch, size = chosen["SOLVER.IMS_PER_BATCH"], chosen["INPUT.MIN_SIZE_TEST"]
        if timed and not batch_fits:
            raise torch.OutOfMemoryError
        timed.append(batch)
        return seconds * (0.05 + 0.95 * batch * size**2 / (4 * 512**2))

    fitted = fit_to_minutes(facts, values, timer, messages.append)
    return fitted, timed, "\n".join(messages).splitlines()


@pytest.mark.parametrize(
    ("seconds", "is_single"),
    [
        (8.5, False),  # 300 of 600 steps
        (9.0, True),  # 1000 of 2400 steps would not be enough, but more do not fit
    ],
)
def test_the_usual_batch_is_trained_if_half_of_its_steps_fit(facts, seconds, is_single):
    facts = replace(facts, train=statistics(size=(300, 300), sides=(28, 60)))  # batches of 4
    fitted, timed, messages = fit(facts, seconds)
    assert fitted.single_images == is_single
    assert timed == [1, 4]
    assert messages[0] == "timing training steps on this machine, for about 60 seconds"
    choices = {one.key: one for one in choose(fitted, {})}
    assert choices["SOLVER.IMS_PER_BATCH"].value == (1 if is_single else 4)
    assert choices["SOLVER.MAX_MINUTES"].value == 15
    assert "SOLVER.MAX_ITER" not in choices
    steps = int(900 / fitted.step_seconds)
    assert f"about {steps} steps" in choices["SOLVER.MAX_MINUTES"].reason
    assert choices["SOLVER.WARMUP_ITERS"].value == min(100, max(steps // 10, 1))
    assert choices["SOLVER.TEST_PERIOD"].value <= steps


def test_a_batch_that_takes_too_long_to_time_is_assumed_to_take_as_long_as_its_images(facts):
    facts = replace(facts, train=statistics(images=40, size=(256, 256), sides=(60, 100)))
    _, timed, messages = fit(facts, 1.0, {"SOLVER.MAX_MINUTES": 1})
    assert timed == [1, 4]
    fitted, timed, messages = fit(facts, 20.0, {"SOLVER.MAX_MINUTES": 1})
    assert messages[0].endswith("about 6 seconds")
    assert timed == [1]
    assert [line.partition(" seconds")[0] for line in messages[1:-1]] == [
        "4 images of 256 pixels per step: 8.8",
        "1 image of 256 pixels per step: 2.2",
    ]
    found = re.match(r"1 min are short: (\d+) minutes allow half", messages[-1])
    assert found
    choices = {one.key: one for one in choose(fitted, {})}
    assert messages[-1] in choices["SOLVER.MAX_MINUTES"].reason
    _, _, messages = fit(facts, 20.0, {"SOLVER.MAX_MINUTES": int(found[1])})
    assert "are short" not in messages[-1]


def test_a_usual_batch_of_one_image_is_timed_once(facts):
    fitted, timed, messages = fit(facts, 9.0)
    assert timed == [1]
    assert len(messages) == 3  # timing; the batch; how many minutes are enough
    assert not fitted.single_images


def test_batches_too_large_for_the_gpu_memory_are_skipped(facts, gpu):
    train = statistics(size=(256, 256), sides=(60, 100))
    facts = DatasetFacts(train, None, gpu)
    fitted, _, messages = fit(facts, 0.01, batch_fits=False)
    assert fitted.single_images
    assert messages[1] == "16 images of 256 pixels per step: too large for the GPU memory"

    def refuse(*_):
        raise torch.OutOfMemoryError

    with pytest.raises(ConfigError, match=r"1 image of .* does not fit into the GPU memory"):
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
    # The clock (0, 1, 4, 9, 16, ...) is read at the start, and five times per batch: before and
    # after loading, before both steps, and at the end. Loading and the second step count.
    assert mean_step_seconds(cfg, max_seconds=999, steps=2) == mean([13 + 19, 23 + 29])
    assert not (tmp_path / "run").exists()
