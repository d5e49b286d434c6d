"""State dicts of Caffe2's Detectron, brought into our layout."""

from __future__ import annotations

import torch

from detlite.conversion import convert
from tests.conversion.synthetic_state_dicts import STEM, caffe2, caffe2_c4


def test_caffe2_statistics_are_those_of_folded_norms():
    model = convert({"blobs": caffe2()}, "caffe2").model
    assert torch.equal(model["backbone.body.res2.0.norm1.running_mean"], torch.zeros(4))
    assert torch.equal(model["backbone.body.stem.norm1.running_var"], torch.ones(STEM))


def test_statistics_that_are_not_folded_stay():
    state = caffe2()
    state["res2_0_branch2a_bn_rm"] = torch.full((4,), 3.0)
    model = convert(state, "caffe2").model
    assert torch.equal(model["backbone.body.res2.0.norm1.running_mean"], torch.full((4,), 3.0))
    assert torch.equal(model["backbone.body.res2.0.norm1.running_var"], torch.ones(4))


def test_last_stage_of_a_c4_model_is_the_heads():
    model = convert(caffe2_c4(), "caffe2").model
    assert "roi_heads.box.feature_extractor.res5.2.conv3.weight" in model
    assert not any(name.startswith("backbone.body.res5.") for name in model)
    assert "backbone.body.res5.2.conv3.weight" in convert(caffe2(), "caffe2").model
