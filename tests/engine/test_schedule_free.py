"""The schedule-free optimizer."""

import sys
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from detlite import ConfigError
from detlite.config import load_config
from detlite.engine.schedule_free import averaged_weights
from detlite.engine.solver import build_optimizer
from tests.engine.toy import assert_equal

KEYS = ["SOLVER.OPTIMIZER", "ScheduleFreeAdamW", "SOLVER.LR_SCHEDULE", "constant"]
LR, DECAY, BETA = 0.01, 0.1, 0.8


def build(model: nn.Module, *opts: object) -> torch.optim.Optimizer:
    pytest.importorskip("schedulefree")
    keys = ["SOLVER.BASE_LR", LR, "SOLVER.WEIGHT_DECAY", DECAY, "SOLVER.MOMENTUM", BETA]
    keys += ["SOLVER.BIAS_LR_FACTOR", 1.0]
    return build_optimizer(load_config(None, [*KEYS, *keys, *opts]), model)


def gradient(weight: Tensor) -> Tensor:
    return 2 * weight + torch.arange(weight.numel()).view_as(weight) * 0.1


def train(optimizer: torch.optim.Optimizer, weight: nn.Parameter, steps: int) -> None:
    for _ in range(steps):
        weight.grad = gradient(weight.detach())
        optimizer.step()


def test_weights_and_averages_are_those_of_the_package():
    """Without warm-up, with the keys of AdamW."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False)
    weight = nn.Parameter(model.weight.detach().clone())
    optimizer = build(model)
    settings = {"lr": LR, "betas": (BETA, 0.999), "weight_decay": DECAY, "warmup_steps": 0}
    expected = sys.modules["schedulefree"].AdamWScheduleFree([weight], **settings)
    expected.train()
    train(optimizer, model.weight, 5)
    train(expected, weight, 5)
    assert_close(model.weight, weight)
    expected.eval()
    with averaged_weights(optimizer):
        assert_close(model.weight, weight)


def test_averages_leave_no_trace():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = build(model)
    with averaged_weights(optimizer):  # before the first step
        pass
    train(optimizer, model.weight, 3)
    weights, state = deepcopy(model.state_dict()), deepcopy(optimizer.state_dict())
    with averaged_weights(optimizer):
        assert not torch.equal(model.weight, weights["weight"])
        averages = deepcopy(model.state_dict())
        with averaged_weights(optimizer):  # as in a hook that is called meanwhile
            assert_equal(model.state_dict(), averages)
        assert_equal(model.state_dict(), averages)
    assert_equal(model.state_dict(), weights)
    assert_equal(optimizer.state_dict(), state)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(ConfigError, match="needs a package: pip install schedulefree"):
        build_optimizer(load_config(None, KEYS), nn.Linear(3, 2))
