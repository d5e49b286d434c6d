"""Models of detectron2's zoo are converted with the settings of their configs.

The models are built on the meta device, if detectron2 is installed from its sources.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.conversion.convert import convert
from detlite.modeling.build import build_model
from tests.conversion.detectron2.live_comparison import build_d2_model, load_d2_config

pytestmark = pytest.mark.skipif(find_spec("detectron2") is None, reason="needs detectron2")

CONFIGS = [
    *(f"COCO-Detection/{name}.yaml" for name in (
        "faster_rcnn_R_50_C4_1x", "faster_rcnn_R_50_DC5_1x", "faster_rcnn_R_50_FPN_1x",
        "faster_rcnn_X_101_32x8d_FPN_3x", "retinanet_R_50_FPN_1x", "rpn_R_50_C4_1x",
        "rpn_R_50_FPN_1x", "fast_rcnn_R_50_FPN_1x")),
    *(f"COCO-InstanceSegmentation/{name}" for name in (
        "mask_rcnn_R_50_C4_1x.yaml", "mask_rcnn_R_101_DC5_3x.yaml", "mask_rcnn_R_50_FPN_1x.yaml",
        "mask_rcnn_regnetx_4gf_dds_fpn_1x.py", "mask_rcnn_regnety_4gf_dds_fpn_1x.py")),
    *(f"new_baselines/mask_rcnn_{backbone}_FPN_100ep_LSJ.py" for backbone in (
        "R_50", "R_101", "regnetx_4gf_dds", "regnety_4gf_dds")),
    "COCO-Keypoints/keypoint_rcnn_R_50_FPN_1x.yaml",
    "COCO-PanopticSegmentation/panoptic_fpn_R_50_1x.yaml",
    "LVISv0.5-InstanceSegmentation/mask_rcnn_X_101_32x8d_FPN_1x.yaml",
    "LVISv1-InstanceSegmentation/mask_rcnn_R_50_FPN_1x.yaml",
    "Cityscapes/mask_rcnn_R_50_FPN.yaml",
    "PascalVOC-Detection/faster_rcnn_R_50_C4.yaml",
    "Detectron1-Comparisons/mask_rcnn_R_50_FPN_noaug_1x.yaml",
    *(f"Misc/{name}.yaml" for name in (
        "mask_rcnn_R_50_FPN_1x_cls_agnostic", "mask_rcnn_R_50_FPN_1x_dconv_c3-c5",
        "cascade_mask_rcnn_R_50_FPN_1x", "mask_rcnn_R_50_FPN_3x_gn", "mask_rcnn_R_50_FPN_3x_syncbn",
        "scratch_mask_rcnn_R_50_FPN_9x_gn", "scratch_mask_rcnn_R_50_FPN_9x_syncbn",
        "panoptic_fpn_R_101_dconv_cascade_gn_3x",
        "cascade_mask_rcnn_X_152_32x8d_FPN_IN5k_gn_dconv")),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_config_of_a_zoo_model(config):
    with torch.device("meta"):
        d2_model = build_d2_model(config, ["MODEL.DEVICE", "meta"])
    state = d2_model.state_dict()
    for name in state:  # the only value that conversion reads
        if re.search(r"stem\.(conv1\.norm|bn)\.num_batches_tracked$", name):
            state[name] = torch.tensor(int("scratch" in config))
    converted = convert(state, "detectron2", Path(config).with_suffix("") / "model_final.pkl")
    with torch.device("meta"):
        opts = [item for pair in yaml.safe_load(converted.config).items() for item in pair]
        cfg = load_config(None, [*opts, "MODEL.DEVICE", "meta"])
        expected_state = build_model(cfg).state_dict()
    other = ("num_batches_tracked", "moving_foreground")  # frozen norms have no counters
    shapes = {n: v.shape for n, v in converted.model.items() if not n.endswith(other)}
    assert shapes == {n: v.shape for n, v in expected_state.items() if not n.endswith(other)}
    assert getattr(d2_model, "input_format", "BGR") == "BGR"
    expected = _model_settings(d2_model) | _input_settings(config)
    assert {key: _value(cfg, key) for key in expected} == expected


def _value(cfg: CfgNode, key: str) -> Any:
    node = cfg
    for part in key.split("."):
        node = node[part]
    return [round(x, 4) for x in node] if isinstance(node, list | tuple) else node


def _input_settings(config: str) -> dict[str, Any]:
    """Return the pixel statistics and test sizes of a config of detectron2."""
    cfg = load_d2_config(config, [])
    if config.endswith(".py"):
        mean, std = cfg.model.pixel_mean, cfg.model.pixel_std
        resize = cfg.dataloader.test.mapper.augmentations[0]
        sides = resize.short_edge_length, resize.max_size
    else:
        mean, std = cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD
        sides = cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
    return {
        "INPUT.PIXEL_MEAN": list(mean),
        "INPUT.PIXEL_STD": list(std),
        "INPUT.MIN_SIZE_TEST": sides[0],
        "INPUT.MAX_SIZE_TEST": sides[1],
    }


def _model_settings(d2_model: Any) -> dict[str, Any]:
    """Return the settings of a model of detectron2, by the config keys of detlite."""
    settings: dict[str, Any] = {}
    rpn = getattr(d2_model, "proposal_generator", None)
    if hasattr(rpn, "pre_nms_topk"):
        settings["MODEL.RPN.PRE_NMS_TOP_N_TRAIN"] = rpn.pre_nms_topk[True]
        settings["MODEL.RPN.PRE_NMS_TOP_N_TEST"] = rpn.pre_nms_topk[False]
        pyramid = "FPN_" if len(rpn.in_features) > 1 else ""
        settings[f"MODEL.RPN.{pyramid}POST_NMS_TOP_N_TRAIN"] = rpn.post_nms_topk[True]
        settings[f"MODEL.RPN.{pyramid}POST_NMS_TOP_N_TEST"] = rpn.post_nms_topk[False]
        settings["MODEL.RPN.NMS_THRESH"] = rpn.nms_thresh
    if hasattr(d2_model, "roi_heads"):
        predictors = d2_model.roi_heads.box_predictor
        predictor = predictors[0] if isinstance(predictors, torch.nn.ModuleList) else predictors
        settings["MODEL.ROI_HEADS.SCORE_THRESH"] = predictor.test_score_thresh
        settings["MODEL.ROI_HEADS.NMS"] = predictor.test_nms_thresh
        settings["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] = predictor.test_topk_per_image
        for head in ("box", "mask", "keypoint"):
            if pooler := getattr(d2_model.roi_heads, f"{head}_pooler", None):
                level, node = pooler.level_poolers[0], f"MODEL.ROI_{head.upper()}_HEAD"
                settings[f"{node}.POOLER_RESOLUTION"] = level.output_size[0]
                settings[f"{node}.POOLER_SAMPLING_RATIO"] = level.sampling_ratio
                settings[f"{node}.POOLER_TYPE"] = "ROIAlignV2" if level.aligned else "ROIAlign"
    backbone = getattr(d2_model.backbone, "bottom_up", d2_model.backbone)
    if hasattr(backbone, "res3"):
        settings["MODEL.RESNETS.STRIDE_IN_1X1"] = backbone.res3[0].conv1.stride[0] == 2
    return settings
