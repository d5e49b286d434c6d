from __future__ import annotations

import torch
from torch import nn

from detlite.engine.hooks.ema import ModelEMA


def test_the_average_follows_by_its_recurrence():
    model = nn.BatchNorm1d(2)
    average = ModelEMA(model, 0.2)
    wanted = {name: value.double().clone() for name, value in model.state_dict().items()}
    for number in range(9):
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randn(2))
        model(torch.randn(4, 2))
        average.update()
        decay = min(0.2, (1 + number) / (10 + number))
        for name, value in model.state_dict().items():
            wanted[name] = decay * wanted[name] + (1 - decay) * value.double()
    wanted["num_batches_tracked"] = model.num_batches_tracked
    for name, value in average.values.items():
        torch.testing.assert_close(value.double(), wanted[name].double(), rtol=1e-6, atol=1e-6)
    assert average.values["num_batches_tracked"] == 9


def test_it_takes_the_place_of_the_weights_and_leaves_it():
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    average = ModelEMA(model, 0.5)
    with torch.no_grad():
        model.weight += 1
    with average.applied():
        assert torch.equal(model.weight, before)
    assert torch.equal(model.weight, before + 1)
    assert torch.equal(average.values["weight"], before)
    assert model.weight.requires_grad


def test_it_goes_on_from_its_state():
    model = nn.Linear(2, 1)
    one, other = ModelEMA(model, 0.5), ModelEMA(model, 0.5)
    with torch.no_grad():
        model.weight += 1
    one.update()
    other.load_state_dict(one.state_dict())
    one.update()
    other.update()
    assert torch.equal(one.values["weight"], other.values["weight"])
    assert one.updates == other.updates == 2
