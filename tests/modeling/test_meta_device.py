"""Whole models on the meta device, whose tensors have shapes and no values."""

import copy

import pytest
import torch
from torch.utils import _pytree as pytree

from detlite.modeling.build import build_model
from detlite.structures.padding import fixed_shapes
from tests.modeling.family import FAMILY, family_batch, family_config


def described(tree):
    return [(tuple(x.shape), x.dtype) for x in pytree.tree_leaves(tree)]


@pytest.mark.parametrize("name", FAMILY)
def test_losses_gradients_and_detections_have_their_shapes(name, tiny_config):
    model = build_model(family_config(name, tiny_config)).train()
    batch = family_batch(model)
    there = copy.deepcopy(model).to("meta")
    moved = [x if x is None else x.to("meta") for x in batch]

    def results(model, batch):
        with fixed_shapes():
            losses = model.train().losses(*batch)
        sum(losses.values()).backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        images, _, given = batch
        with torch.no_grad():
            return losses, gradients, model.eval().predict(images, given)

    expected, found = results(model, batch), results(there, moved)
    assert found[0].keys() == expected[0].keys()
    assert found[1].keys() == expected[1].keys()
    assert described(found) == described(expected)
    assert all(x.is_meta for x in pytree.tree_leaves(found))
