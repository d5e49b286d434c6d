"""EMA of the weights."""

import torch
from torch import nn

from detlite.engine.hooks.ema import ModelEMA


def test_updates_follow_the_formula():
    model = nn.BatchNorm1d(2)
    ema = ModelEMA(model, 0.2)
    expected = {name: value.double().clone() for name, value in model.state_dict().items()}
    for number in range(9):
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randn(2))
        model(torch.randn(4, 2))
        ema.after_step({})
        decay = min(0.2, (1 + number) / (10 + number))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
    expected["num_batches_tracked"] = model.num_batches_tracked
    for name, value in ema.values.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-6, atol=1e-6)
    assert ema.values["num_batches_tracked"] == 9


def test_applied_swaps_the_weights_and_restores_them():
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    ema = ModelEMA(model, 0.5)
    with torch.no_grad():
        model.weight += 1
    with ema.applied():
        assert torch.equal(model.weight, before)
    assert torch.equal(model.weight, before + 1)
    assert torch.equal(ema.values["weight"], before)
    assert model.weight.requires_grad
