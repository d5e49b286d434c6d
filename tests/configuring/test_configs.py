"""Configs of runs that name none: which keys are whose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detlite.config import ConfigError, load_config
from detlite.configuring import Facts, choose, config_by_data, config_by_weights
from detlite.engine.checkpoint import Checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from test_rules import statistics


def untimed(cfg):
    raise AssertionError("no step is to be timed")


@pytest.fixture
def facts(cpu) -> Facts:
    """Pictures of 512 pixels, of which a step on a CPU takes one."""
    return Facts(statistics(size=(512, 512), sides=(28, 60)), statistics(pictures=100), cpu)


@pytest.fixture
def checkpoint() -> Checkpoint:
    """Weights of a detector of people and their keypoints."""
    cfg = load_config("coco/keypoint_rcnn_R_50_FPN_1x.yaml", ["MODEL.MASK_ON", True])
    return Checkpoint(Path("person.pth"), {}, config=cfg.dump())


def test_overrides_go_before_what_is_chosen(facts):
    cfg = config_by_data(facts, ["SOLVER.MAX_EPOCHS", 3, "SOLVER.BASE_LR", 0.1], None, untimed)
    chosen = {one.key: one.value for one in choose(facts)}
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.MAX_EPOCHS, cfg.SOLVER.BASE_LR) == (None, 3, 0.1)
    assert [chosen["SOLVER.IMS_PER_BATCH"], 1] == [1, cfg.SOLVER.IMS_PER_BATCH]
    assert list(cfg.MODEL.RPN.ANCHOR_SIZES) == chosen["MODEL.RPN.ANCHOR_SIZES"]
    assert cfg.SOLVER.LR_SCHEDULE == "cosine"


def test_the_model_of_weights_is_trained_as_the_rules_say(facts, checkpoint):
    cfg = config_by_weights(facts, ["SOLVER.BASE_LR", 0.1], None, untimed, checkpoint)
    assert (cfg.MODEL.BACKBONE.CONV_BODY, cfg.INPUT.MIN_SIZE_TEST) == ("R-50-FPN", 800)
    assert cfg.MODEL.MASK_ON
    assert not cfg.MODEL.KEYPOINT_ON  # the data have none
    assert (cfg.SOLVER.OPTIMIZER, cfg.SOLVER.LR_SCHEDULE) == ("AdamW", "cosine")
    assert (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.BASE_LR) == (1, 0.1)
    assert cfg.SOLVER.MAX_ITER == 2400  # 6 rounds of 400, as the weights are pretrained


def test_heads_stay_whose_objects_the_data_have(cpu, checkpoint):
    found = statistics(keypoints=["nose"], masks=0.5)
    cfg = config_by_weights(Facts(found, None, cpu), [], None, untimed, checkpoint)
    assert cfg.MODEL.KEYPOINT_ON
    assert not cfg.MODEL.MASK_ON


def test_minutes_of_weights(facts, checkpoint):
    cfg = config_by_weights(facts, [], 10, lambda cfg: 2.0, checkpoint)
    assert (cfg.SOLVER.MAX_MINUTES, cfg.SOLVER.MAX_ITER) == (10, None)
    assert cfg.SOLVER.WARMUP_ITERS == 30  # of 300 steps


def test_weights_that_do_not_say_what_they_are_of(facts):
    with pytest.raises(ConfigError, match=r"bare\.pth: does not say which detector"):
        config_by_weights(facts, [], None, untimed, Checkpoint(Path("bare.pth"), {}))
