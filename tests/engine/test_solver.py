"""Optimizers and learning rate schedules."""

import math

import pytest
import torch
from torch import nn

from detlite.config import ConfigError, load_config
from detlite.engine.schedule import Schedule
from detlite.engine.solver import build_optimizer, build_scheduler
from detlite.modeling.backbone import Backbone
from detlite.modeling.build import build_model
from detlite.modeling.layers.norm import LevelBatchNorm


def make_cfg(**keys):
    defaults = {"BASE_LR": 0.1, "MAX_ITER": 100, "STEPS": (60, 80), "WARMUP_ITERS": 0}
    opts = [
        item for key, value in {**defaults, **keys}.items() for item in (f"SOLVER.{key}", value)
    ]
    return load_config(None, opts)


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 2),
        nn.LayerNorm(2), LevelBatchNorm(4, 2, nn.BatchNorm2d),
    )  # fmt: skip


def lr_history(cfg, count, schedule=None):
    optimizer = build_optimizer(cfg, nn.Linear(2, 2, bias=False))
    scheduler = build_scheduler(cfg, optimizer, schedule or Schedule(cfg.SOLVER, 10))
    values = [optimizer.param_groups[0]["lr"]]
    for _ in range(count - 1):
        optimizer.step()
        scheduler.step()
        values.append(optimizer.param_groups[0]["lr"])
    return values


def test_learning_rate_and_decay_by_type_of_parameter():
    cfg = make_cfg(
        BIAS_LR_FACTOR=2.0, WEIGHT_DECAY=0.1, WEIGHT_DECAY_BIAS=0.2, WEIGHT_DECAY_NORM=0.3
    )
    model = make_model()
    optimizer = build_optimizer(cfg, model)
    by_parameter = {
        parameter: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert len(optimizer.param_groups) == 3
    for layer in model:
        assert by_parameter[layer.bias] == (0.2, 0.2)
    assert by_parameter[model[0].weight] == by_parameter[model[3].weight] == (0.1, 0.1)
    for norm in (model[1], model[2], model[4], model[5]):
        assert by_parameter[norm.weight] == (0.1, 0.3)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 12


class SmallDetector(nn.Module):
    """Backbone with a stem and two stages, neck and head."""

    def __init__(self):
        super().__init__()
        body = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])
        neck = nn.Linear(2, 2, bias=False)
        self.backbone = Backbone(body, neck, out_channels=2, strides=(4,), pooled=1)
        self.head = nn.Linear(2, 2)


def rates_of(model, optimizer):
    """Return the learning rate of each parameter by name."""
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: rates[p] for name, p in model.named_parameters() if p in rates}


def test_learning_rates_of_the_backbone_decrease_towards_the_input():
    model = SmallDetector()
    keys = {"LAYER_DECAY": 0.1, "BIAS_LR_FACTOR": 2.0}
    optimizer = build_optimizer(make_cfg(**keys), model)
    expected = {
        "backbone.body.0.weight": 0.1 * 0.1**3,
        "backbone.body.1.weight": 0.1 * 0.1**2,
        "backbone.body.2.weight": 0.1 * 0.1,
        "backbone.neck.weight": 0.1,
        "head.weight": 0.1,
        "head.bias": 0.2,
    }
    assert rates_of(model, optimizer) == pytest.approx(expected)
    assert optimizer.param_groups[0]["lr"] == 0.1  # the logged one
    cfg = make_cfg(STEPS=(1,), **keys)
    scheduler = build_scheduler(cfg, optimizer, Schedule(cfg.SOLVER, 10))
    optimizer.step()
    scheduler.step()
    assert rates_of(model, optimizer)["backbone.body.0.weight"] == pytest.approx(1e-5)
    model.backbone.body[0].requires_grad_(False)  # counts as a layer
    del expected["backbone.body.0.weight"]
    optimizer = build_optimizer(make_cfg(**keys), model)
    assert rates_of(model, optimizer) == pytest.approx(expected)


def test_the_layers_of_a_resnet_are_its_stages(tiny_config):
    cfg = tiny_config("SOLVER.LAYER_DECAY", 0.5, "SOLVER.BASE_LR", 1.0, "SOLVER.BIAS_LR_FACTOR", 1)
    model = build_model(cfg)
    rates = rates_of(model, build_optimizer(cfg, model))
    for number, part in enumerate(("stem", "res2", "res3", "res4", "res5")):
        own = {rate for name, rate in rates.items() if name.startswith(f"backbone.body.{part}.")}
        assert own == {0.5 ** (5 - number)}
    assert {r for name, r in rates.items() if not name.startswith("backbone.body.")} == {1.0}


def test_frozen_and_shared_parameters():
    model = make_model()
    model[0].requires_grad_(False)
    model.append(model[3])
    optimizer = build_optimizer(make_cfg(), model)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(parameters) == len(set(parameters)) == 10
    with pytest.raises(ConfigError, match="no trainable parameter"):
        build_optimizer(make_cfg(), model.requires_grad_(False))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_overflow_in_the_first_step_has_no_effect(dtype):
    cfg = make_cfg(BASE_LR=0.5, WEIGHT_DECAY=0.0)
    cfg.defrost()
    cfg.DTYPE = dtype
    layer = nn.Linear(64, 64, bias=False)
    before = layer.weight.detach().clone()
    optimizer = build_optimizer(cfg, layer)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")
    if scaler.is_enabled():
        layer.weight.grad = torch.full_like(layer.weight, math.inf)
        scaler.scale(torch.zeros(()))
        garbage = torch.full_like(layer.weight, math.nan)
        del garbage  # the optimizer is likely to reuse this memory
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(layer.weight, before)
    layer.weight.grad = torch.full_like(layer.weight, scaler.get_scale())
    scaler.step(optimizer)
    torch.testing.assert_close(layer.weight.detach(), before - 0.5)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"STEPS": (2, 4), "MAX_ITER": 6, "GAMMA": 0.1}, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
        ({"STEPS": (0.5,), "MAX_ITER": 4}, [0.1, 0.1, 0.01, 0.01]),
        (
            {"LR_SCHEDULE": "constant", "WARMUP_ITERS": 2, "WARMUP_FACTOR": 0.5, "STEPS": (3,)},
            [0.05, 0.075, *[0.1] * 4],
        ),
        ({"WARMUP_ITERS": 4, "WARMUP_FACTOR": 0.2}, [0.02, 0.04, 0.06, 0.08, 0.1, 0.1]),
        (
            {"WARMUP_ITERS": 2, "WARMUP_FACTOR": 0.5, "WARMUP_METHOD": "constant"},
            [0.05, 0.05, 0.1, 0.1],
        ),
        (
            {"LR_SCHEDULE": "cosine", "MAX_ITER": 10, "STEPS": (60,)},  # ignores STEPS
            [0.05 * (1 + math.cos(math.pi * i / 10)) for i in range(11)],
        ),
    ],
)
def test_schedules(keys, expected):
    assert lr_history(make_cfg(**keys), len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ({"WARMUP_ITERS": 99, "STEPS": (60,)}, ""),
        ({"STEPS": (60, 101)}, "(60, 101) exceed the run's 100 iterations"),
        *(
            ({"WARMUP_ITERS": warmup, "STEPS": (60,)},
             f"WARMUP_ITERS is {warmup} and the run has 100 iterations: the learning rate never")
            for warmup in (100, 500)
        ),
    ],
)  # fmt: skip
def test_schedules_that_are_too_long_cause_a_warning(caplog, keys, warning):
    cfg = make_cfg(**keys)
    build_scheduler(cfg, build_optimizer(cfg, make_model()), Schedule(cfg.SOLVER, 10))
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)


class KnownFractions(Schedule):
    """Run with an unknown number of iterations and given fractions."""

    def __init__(self, fractions):
        super().__init__(make_cfg(MAX_ITER=None, MAX_MINUTES=1).SOLVER, 10)
        self.fractions = [0.0, *fractions]

    def fraction(self, done):
        return self.fractions[done]


LONG = {"WARMUP_ITERS": 1000, "WARMUP_FACTOR": 0.0, "STEPS": ()}


@pytest.mark.parametrize(
    ("keys", "fractions", "expected"),
    [
        ({"LR_SCHEDULE": "cosine"}, [0.5, 0.75, 1.0],
         [0.1, 0.05, 0.05 * (1 + math.cos(0.75 * math.pi)), 0.0]),
        ({"STEPS": (0.5, 0.9), "GAMMA": 0.1}, [0.4, 0.5, 0.95], [0.1, 0.1, 0.01, 0.001]),
        # A long warmup ends after a tenth of the run.
        (LONG, [0.05, 0.1, 0.2], [0.0, 0.05, 0.1, 0.1]),
        (LONG | {"WARMUP_ITERS": 2}, [0.01, 0.02, 0.03], [0.0, 0.05, 0.1, 0.1]),
    ],
)  # fmt: skip
def test_schedules_follow_the_fraction_of_the_run(keys, fractions, expected):
    values = lr_history(make_cfg(**keys), len(expected), KnownFractions(fractions))
    assert values == pytest.approx(expected)


def test_a_run_limited_by_time_needs_fractions():
    cfg = make_cfg(STEPS=(60, 80))
    with pytest.raises(ConfigError, match=r"SOLVER\.MAX_MINUTES limits the time"):
        build_scheduler(cfg, build_optimizer(cfg, make_model()), KnownFractions([]))


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("SGD", torch.optim.SGD, {"momentum": 0.7}),
        ("FusedSGD", torch.optim.SGD, {"momentum": 0.7}),  # apex's name
        ("AdamW", torch.optim.AdamW, {"betas": (0.7, 0.999)}),
    ],
)
def test_optimizers(name, kind, settings):
    optimizer = build_optimizer(make_cfg(OPTIMIZER=name, MOMENTUM=0.7), make_model())
    assert type(optimizer) is kind
    for group in optimizer.param_groups:
        assert group["fused"]
        assert settings.items() <= group.items()
