"""Every family of detectron2's model zoo loads, by the config that detectron2 has for it.

Its models are built without values, where it can be imported from its sources; nothing is computed.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from yacs.config import CfgNode

from detlite.config import load_config
from detlite.conversion import convert
from detlite.modeling.build import build_model
from tests.conversion.detectron2.live_comparison import build_peer, peer_config

pytestmark = pytest.mark.skipif(find_spec("detectron2") is None, reason="needs detectron2")

CONFIGS = [
    *(f"COCO-Detection/{name}.yaml" for name in (
        "faster_rcnn_R_50_C4_1x", "faster_rcnn_R_50_DC5_1x", "faster_rcnn_R_50_FPN_1x",
        "faster_rcnn_X_101_32x8d_FPN_3x", "retinanet_R_50_FPN_1x", "rpn_R_50_C4_1x",
        "rpn_R_50_FPN_1x", "fast_rcnn_R_50_FPN_1x")),
    *(f"COCO-InstanceSegmentation/{name}" for name in (
        "mask_rcnn_R_50_C4_1x.yaml", "mask_rcnn_R_101_DC5_3x.yaml", "mask_rcnn_R_50_FPN_1x.yaml",
        "mask_rcnn_regnetx_4gf_dds_fpn_1x.py", "mask_rcnn_regnety_4gf_dds_fpn_1x.py")),
    *(f"new_baselines/mask_rcnn_{body}_FPN_100ep_LSJ.py" for body in (
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
def test_a_model_of_the_zoo_loads_with_its_config(config):
    with torch.device("meta"):
        peer = build_peer(config, ["MODEL.DEVICE", "meta"])
    state = peer.state_dict()
    for name in state:  # the one number that is read
        if re.search(r"stem\.(conv1\.norm|bn)\.num_batches_tracked$", name):
            state[name] = torch.tensor(int("scratch" in config))
    converted = convert(state, "detectron2", Path(config).with_suffix("") / "model_final.pkl")
    with torch.device("meta"):
        opts = [item for pair in converted.config.items() for item in pair]
        cfg = load_config(None, [*opts, "MODEL.DEVICE", "meta"])
        ours = build_model(cfg).state_dict()
    counters = "num_batches_tracked"  # of norms that are frozen here
    theirs = {n: v.shape for n, v in converted.model.items() if not n.endswith(counters)}
    assert theirs == {
        n: v.shape for n, v in ours.items() if not n.endswith(counters) and n != "moving_foreground"
    }
    assert getattr(peer, "input_format", "BGR") == "BGR"
    wanted = _said(peer) | _input(config)
    assert {key: _value(cfg, key) for key in wanted} == wanted


def _value(cfg: CfgNode, key: str) -> Any:
    node = cfg
    for part in key.split("."):
        node = node[part]
    return [round(x, 4) for x in node] if isinstance(node, list | tuple) else node


def _input(config: str) -> dict[str, Any]:
    """What its config says of pixels, and of the size of pictures in evaluation."""
    cfg = peer_config(config, [])
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


def _said(peer: Any) -> dict[str, Any]:
    """Keys of ours and the values that a model of detectron2 has for them."""
    said: dict[str, Any] = {}
    rpn = getattr(peer, "proposal_generator", None)
    if hasattr(rpn, "pre_nms_topk"):
        said["MODEL.RPN.PRE_NMS_TOP_N_TRAIN"] = rpn.pre_nms_topk[True]
        said["MODEL.RPN.PRE_NMS_TOP_N_TEST"] = rpn.pre_nms_topk[False]
        pyramid = "FPN_" if len(rpn.in_features) > 1 else ""
        said[f"MODEL.RPN.{pyramid}POST_NMS_TOP_N_TRAIN"] = rpn.post_nms_topk[True]
        said[f"MODEL.RPN.{pyramid}POST_NMS_TOP_N_TEST"] = rpn.post_nms_topk[False]
        said["MODEL.RPN.NMS_THRESH"] = rpn.nms_thresh
    if hasattr(peer, "roi_heads"):
        predictors = peer.roi_heads.box_predictor
        predictor = predictors[0] if isinstance(predictors, torch.nn.ModuleList) else predictors
        said["MODEL.ROI_HEADS.SCORE_THRESH"] = predictor.test_score_thresh
        said["MODEL.ROI_HEADS.NMS"] = predictor.test_nms_thresh
        said["MODEL.ROI_HEADS.DETECTIONS_PER_IMG"] = predictor.test_topk_per_image
        for head in ("box", "mask", "keypoint"):
            if pooler := getattr(peer.roi_heads, f"{head}_pooler", None):
                level, node = pooler.level_poolers[0], f"MODEL.ROI_{head.upper()}_HEAD"
                said[f"{node}.POOLER_RESOLUTION"] = level.output_size[0]
                said[f"{node}.POOLER_SAMPLING_RATIO"] = level.sampling_ratio
                said[f"{node}.POOLER_TYPE"] = "ROIAlignV2" if level.aligned else "ROIAlign"
    body = getattr(peer.backbone, "bottom_up", peer.backbone)
    if hasattr(body, "res3"):
        said["MODEL.RESNETS.STRIDE_IN_1X1"] = body.res3[0].conv1.stride[0] == 2
    return said
