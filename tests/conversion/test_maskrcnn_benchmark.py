"""Conversion of maskrcnn-benchmark and of Caffe2 (Detectron): layout and config."""

import pytest
import torch
import yaml

from detlite.conversion.convert import convert
from tests.conversion.recorded_state_dicts import STEM, cell_anchors, config_of, state_dict


def test_shared_stage_is_that_of_the_last_head():
    """maskrcnn-benchmark loads the stage of each head into the same module."""
    state = state_dict("maskrcnn-benchmark, C4")
    [last] = [n for n in state if "mask.feature_extractor" in n and "layer4.2.conv3.weight" in n]
    state[last] = state[last] + 1
    model = convert(state, "maskrcnn-benchmark").model
    assert torch.equal(model["roi_heads.box.feature_extractor.res5.2.conv3.weight"], state[last])
    assert not any(name.startswith("roi_heads.mask.feature_extractor.") for name in model)


def test_nine_anchors_of_a_c4_model():
    state = state_dict("maskrcnn-benchmark, C4")
    del state["module.rpn.anchor_generator.cell_anchors.0"]
    for name, value in state.items():
        if "rpn.head.cls_logits" in name or "rpn.head.bbox_pred" in name:
            state[name] = value[: 9 * len(value) // 15]
    config = config_of(state, "maskrcnn-benchmark")
    assert config["MODEL.RPN.ANCHOR_SIZES"] == [128, 256, 512]
    assert config["MODEL.RPN.POST_NMS_TOP_N_TEST"] == 300


@pytest.mark.parametrize("fpn", [True, False])
@pytest.mark.parametrize("ratios", [[0.5, 1.0, 2.5], [0.5, 2.0], [0.04, 1.0]])
def test_stored_anchors(fpn, ratios):
    sizes = [8.0, 20.0, 40.5, 100.0, 300.0]
    levels, strides = ([[size] for size in sizes], [4, 8, 16, 32, 64]) if fpn else ([sizes], [16])
    state = state_dict(f"maskrcnn-benchmark, {'FPN' if fpn else 'C4'}") | cell_anchors(
        levels, ratios, strides
    )
    checkpoint = convert(state, "maskrcnn-benchmark")
    config = yaml.safe_load(checkpoint.config)
    for found, expected in zip(config["MODEL.RPN.ANCHOR_SIZES"], levels, strict=True):
        assert found == pytest.approx(expected)
    assert config["MODEL.RPN.ASPECT_RATIOS"] == ratios
    assert checkpoint.stated == {"MODEL.RPN.ANCHOR_SIZES", "MODEL.RPN.ASPECT_RATIOS"}
    others = {name: cells + 7 for name, cells in state.items() if "cell_anchors" in name}
    others["module.rpn.anchor_generator.cell_anchors.0"][0, 2] += 3  # not of these sizes
    unknown = convert(state | others, "maskrcnn-benchmark")
    assert not unknown.stated


@pytest.mark.parametrize("stored", [False, True])
def test_statistics_of_norms(stored):
    state = state_dict("caffe2, FPN") | ({"res2_0_branch2a_bn_rm": torch.ones(4)} if stored else {})
    model = convert({"blobs": state}, "caffe2").model
    means = model["backbone.body.res2.0.norm1.running_mean"]
    assert torch.equal(means, torch.full((4,), float(stored)))  # folded ones become 0 and 1
    assert torch.equal(model["backbone.body.stem.norm1.running_var"], torch.ones(STEM))
