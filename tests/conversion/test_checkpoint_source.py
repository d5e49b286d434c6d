"""Names of published files: recognition of their framework, and renaming."""

import pytest
import torch

from detlite.conversion.checkpoint_source import rename
from detlite.conversion.convert import SOURCES, _number_levels_from_zero, recognize

BODY, NECK = "backbone.body", "backbone.neck"
BOX, MASK = "roi_heads.box.feature_extractor", "roi_heads.mask.feature_extractor"
# Names of older files and of layers that the recorded outputs of converted models do not cover.
CASES = {
    "torchvision": {
        "backbone.fpn.inner_blocks.3.0.bias": f"{NECK}.lateral.3.0.bias",
        "backbone.fpn.inner_blocks.3.bias": f"{NECK}.lateral.3.0.bias",
        "rpn.head.conv.bias": "rpn.head.conv.bias",
        "roi_heads.mask_head.mask_fcn4.weight": f"{MASK}.convs.3.0.weight",
        "layer2.3.conv2.weight": f"{BODY}.res3.3.conv2.weight",
    },
    "detectron2": {
        "backbone.res3.1.conv2.weight": f"{BODY}.res3.1.conv2.weight",
        "res3.1.conv2.weight": f"{BODY}.res3.1.conv2.weight",
        "backbone.fpn_output5.norm.bias": f"{NECK}.output.3.1.bias",
        "proposal_generator.rpn_head.conv.conv0.bias": "rpn.head.conv.bias",
        "roi_heads.box_head.conv1.weight": f"{BOX}.convs.0.0.weight",
        "roi_heads.box_head.2.conv4.norm.bias": "roi_heads.box.2.feature_extractor.convs.3.1.bias",
        "roi_heads.mask_head.mask_fcn4.norm.bias": f"{MASK}.convs.3.1.bias",
    },
    "maskrcnn-benchmark": {
        "backbone.body.layer3.5.conv1.weight": f"{BODY}.res4.5.conv1.weight",
        "backbone.fpn.fpn_layer4.1.bias": f"{NECK}.output.3.1.bias",
        f"{BOX}.fc6.0.weight": f"{BOX}.fc6.weight",
        f"{BOX}.fc7.1.bias": f"{BOX}.norm7.bias",
        f"{BOX}.head.layer4.0.bn2.weight": f"{BOX}.res5.0.norm2.weight",
        f"{MASK}.mask_fcn2.weight": f"{MASK}.convs.1.0.weight",
    },
    "mmdetection": {
        "rpn_head.rpn_conv.0.conv.bias": "rpn.head.conv.bias",
        "rpn_head.rpn_conv.1.conv.bias": "rpn.head.more_convs.0.bias",
        "roi_head.bbox_head.shared_convs.3.conv.weight": f"{BOX}.convs.3.0.weight",
    },
    "caffe2": {
        "conv1_w": f"{BODY}.stem.conv1.weight",
        "res_conv1_bn_b": f"{BODY}.stem.norm1.bias",
        "res2_0_branch1_w": f"{BODY}.res2.0.downsample.0.weight",
        "res2_0_branch1_bn_b": f"{BODY}.res2.0.downsample.1.bias",
        "res4_22_branch2c_bn_s": f"{BODY}.res4.22.norm3.weight",
        "res4_22_branch2a_w": f"{BODY}.res4.22.conv1.weight",
        "res2_0_branch2b_bn_gamma": f"{BODY}.res2.0.norm2.weight",
        "res2_0_branch1_bn_running_var": f"{BODY}.res2.0.downsample.1.running_var",
        "res3_1_branch2c_bn_rm": f"{BODY}.res3.1.norm3.running_mean",
        "res3_1_branch2c_bn_riv": f"{BODY}.res3.1.norm3.running_var",
        "res3_0_branch2a_gn_b": f"{BODY}.res3.0.norm1.bias",
        "head_conv4_gn_s": f"{BOX}.convs.3.1.weight",
        "conv_fcn8_b": "roi_heads.keypoint.feature_extractor.convs.7.0.bias",
        "kps_score_lowres_w": "roi_heads.keypoint.predictor.kps_score_lowres.weight",
        "fpn_inner_res5_2_sum_w": f"{NECK}.lateral.3.0.weight",
        "fpn_inner_res2_2_sum_lateral_b": f"{NECK}.lateral.0.0.bias",
        "fpn_res4_5_sum_w": f"{NECK}.output.2.0.weight",
        "conv_rpn_fpn2_w": "rpn.head.conv.weight",
        "rpn_cls_logits_w": "rpn.head.cls_logits.weight",
        "fc6_w": f"{BOX}.fc6.weight",
        "bbox_pred_b": "roi_heads.box.predictor.bbox_pred.bias",
        "_[mask]_fcn3_w": f"{MASK}.convs.2.0.weight",
    },
}


@pytest.mark.parametrize("source", CASES)
def test_names(source):
    rules = SOURCES[source].rules
    assert {name: rename(name, rules) for name in CASES[source]} == CASES[source]


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (["conv1.weight", "layer1.0.conv1.weight", "fc.bias"], "torchvision"),
        (["stem.conv1.weight", "res2.0.conv1.weight"], "detectron2"),
        (["conv1.weight", "bn1.weight", "blocks.0.conv1.weight"], None),
        (["backbone.body.stem.bn1.weight", "backbone.body.layer1.0.conv1.weight"],
         "maskrcnn-benchmark"),
        (["backbone.conv1.weight", "neck.lateral_convs.0.conv.weight"], "mmdetection"),
        (["backbone.stem.0.weight", "bbox_head.retina_cls.weight"], "mmdetection"),
        (["backbone.body.stem.conv1.weight", "backbone.body.res2.0.conv1.weight"], None),
        (["weight"], None),
    ],
)  # fmt: skip
def test_source_is_recognised_by_names(names, source):
    assert recognize(names) == source


def test_unused_weights_are_skipped():
    unused = {
        "torchvision": ["fc.weight", "criterion.weight", "val_metrics.map", "class_weights"],
        "detectron2": ["pixel_mean", "stem.fc.bias", "sem_seg_head.predictor.weight",
                       "roi_heads.box_predictor.fed_loss_cls_weights",
                       "proposal_generator.anchor_generator.cell_anchors.0"],
        "maskrcnn-benchmark": ["rpn.anchor_generator.cell_anchors.0"],
        "caffe2": ["lr", "fc1000_w", "fc6_w_momentum", "res2_0_branch2a_b", "kps_score_w"],
        "timm": [],
    }  # fmt: skip
    for source, names in unused.items():
        (kept,) = SOURCES[source].rename(dict.fromkeys([*names, "used"], 0))
        assert kept in ("used", "backbone.body.net.used")


@pytest.mark.parametrize("finest", [0, 1])
def test_levels_are_numbered_from_zero(finest):
    names = [f"backbone.neck.{layer}.{{}}.0.weight" for layer in ("lateral", "output")]
    state = {name.format(finest + k): torch.tensor(k) for name in names for k in range(3)}
    expected = {name.format(k): k for name in names for k in range(3)}
    other = {"other.1.weight": torch.tensor(9)}
    assert _number_levels_from_zero(state | other) == expected | {"other.1.weight": 9}
