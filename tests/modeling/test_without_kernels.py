"""Whole models with fallback operators, compared with the compiled kernels."""

import pytest
import torch
from torch.utils import _pytree as pytree

from detlite import ops
from detlite.modeling.build import build_model
from detlite.ops import dispatch
from tests.modeling.family import family_batch, family_config, losses_and_gradients

KINDS = ["mask", "c4", "keypoint", "cascade", "retinanet"]


@pytest.fixture
def config(request, tiny_config):
    return family_config(request.param, tiny_config)


@pytest.fixture
def called(monkeypatch):
    """Return the names of the fallback operators that ran."""
    names = set()

    def noting(name, kernel):
        def run(*arguments):
            names.add(name)
            return kernel(*arguments)

        return run

    kernels = {name: noting(name, kernel) for name, kernel in dispatch.FALLBACKS.items()}
    monkeypatch.setattr(dispatch, "FALLBACKS", kernels)
    return names


@pytest.mark.parametrize("config", KINDS, indirect=True)
def test_losses_and_gradients_are_the_same(config, called):
    model = build_model(config)
    batch = family_batch(model)
    losses, gradients = losses_and_gradients(model, *batch)
    with dispatch.use_fallback_ops():
        result, own = losses_and_gradients(model, *batch)
    torch.testing.assert_close(result, losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own, gradients, rtol=1e-3, atol=1e-5)
    assert "match_boxes" in called
    assert ("crop_masks" in called) == bool(config.MODEL.MASK_ON)
    assert ops.has_kernels("cpu")


@pytest.mark.parametrize("config", [*KINDS, "voting"], indirect=True)
@torch.no_grad()
def test_detections_are_the_same(config, called):
    model = build_model(config).eval()
    images, _, inputs = family_batch(model)
    expected = model.predict(images, inputs)
    with dispatch.use_fallback_ops():
        result = model.predict(images, inputs)
    assert expected.valid.any()
    leaves = (pytree.tree_leaves(tree) for tree in (result, expected))
    torch.testing.assert_close(*leaves, rtol=1e-4, atol=1e-3)
    assert "padded_nms" in called
    assert ("heatmap_peaks" in called) == bool(config.MODEL.KEYPOINT_ON)
