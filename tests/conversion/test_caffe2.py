"""Conversion of Caffe2 (Detectron)."""

import torch

from detlite.conversion import convert
from tests.conversion.synthetic_state_dicts import STEM, caffe2, caffe2_c4


def test_folded_statistics_become_0_and_1():
    model = convert({"blobs": caffe2()}, "caffe2").model
    assert torch.equal(model["backbone.body.res2.0.norm1.running_mean"], torch.zeros(4))
    assert torch.equal(model["backbone.body.stem.norm1.running_var"], torch.ones(STEM))


def test_stored_statistics_are_kept():
    state = caffe2()
    state["res2_0_branch2a_bn_rm"] = torch.full((4,), 3.0)
    model = convert(state, "caffe2").model
    assert torch.equal(model["backbone.body.res2.0.norm1.running_mean"], torch.full((4,), 3.0))
    assert torch.equal(model["backbone.body.res2.0.norm1.running_var"], torch.ones(4))


def test_last_stage_of_a_c4_model_belongs_to_the_head():
    model = convert(caffe2_c4(), "caffe2").model
    assert "roi_heads.box.feature_extractor.res5.2.conv3.weight" in model
    assert not any(name.startswith("backbone.body.res5.") for name in model)
    assert "backbone.body.res5.2.conv3.weight" in convert(caffe2(), "caffe2").model
