"""Write models for torchvision, and check that torchvision detects the same with the file."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection import faster_rcnn as faster
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN, mobilenet_backbone
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign, box_iou
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7
from yacs.config import CfgNode

from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.modeling import build_model
from detlite.modeling.backbone.build import build_resnet_options
from detlite.modeling.backbone.resnet import DEPTHS

from .checkpoint_source import StateDict, rename

TO_TORCHVISION_RULES = [
    (r"^backbone\.body\.stem\.(conv1|norm1)\.", r"backbone.body.\1."),
    *((rf"\.res{n + 1}\.", f".layer{n}.") for n in range(1, 5)),
    (r"^(backbone\.body\..*)\bnorm(\d)\.", r"\1bn\2."),
    (r"^backbone\.neck\.lateral\.", "backbone.fpn.inner_blocks."),
    (r"^backbone\.neck\.output\.", "backbone.fpn.layer_blocks."),
    (r"^rpn\.head\.conv\.", "rpn.head.conv.0.0."),
    *((rf"^rpn\.head\.more_convs\.{n - 1}\.", f"rpn.head.conv.{n}.0.") for n in range(1, 4)),
    (r"^roi_heads\.(box|mask|keypoint)\.predictor\.", r"roi_heads.\1_predictor."),
    (r"^roi_heads\.(\w+)\.feature_extractor\.(?:convs\.)?", r"roi_heads.\1_head."),
    (r"^backbone\.neck\.top\.", "backbone.fpn.extra_blocks."),
    (r"^head\.cls_tower\.", "head.classification_head.conv."),
    (r"^head\.cls_logits\.", "head.classification_head.cls_logits."),
    (r"^head\.bbox_tower\.", "head.regression_head.conv."),
    (r"^head\.bbox_pred\.", "head.regression_head.bbox_reg."),
    *((rf"\.keypoint_head\.{n}\.0\.", f".keypoint_head.{2 * n}.") for n in range(8)),
]  # fmt: skip


def to_torchvision(state: Mapping[str, Tensor]) -> StateDict:
    """Convert a state dict for torchvision's detectors on ResNet-FPN (strict loading).

    Raises:
        ValueError: torchvision has no such model.
    """
    for names in (
        ["backbone.neck.output.0.0.weight"],
        ["backbone.body.stem.conv1.weight", "backbone.body.16.0.weight"],
        ["rpn.head.conv.weight", "head.bbox_pred.weight"],
        ["roi_heads.box.feature_extractor.fc6.weight", "head.bbox_pred.weight"],
    ):
        if not any(name in state for name in names):
            raise ValueError(
                "torchvision has R-CNNs with fully connected heads, and RetinaNets, on a ResNet "
                "or MobileNetV3 with a feature pyramid only; this model has no "
                f"{' or '.join(names)}"
            )
    for name, value in state.items():
        # a 1x1 convolution after another layer
        separable = name.endswith(".1.weight") and value.ndim == 4
        if separable or ".offset." in name or name.startswith("roi_heads.mask.more."):
            raise ValueError(
                "torchvision has neither separable nor deformable convolutions, nor several mask "
                f"heads; this model has {name}"
            )
    renamed = {rename(name, TO_TORCHVISION_RULES): value for name, value in state.items()}
    convs = {name.split(".")[2] for name in renamed if re.match(r"roi_heads\.box_head\.\d", name)}
    if convs:  # a sequence: convolutions, flatten, fully connected layer
        fc = f"roi_heads.box_head.{len(convs) + 1}."
        renamed = {n.replace("roi_heads.box_head.fc6.", fc): v for n, v in renamed.items()}
    return renamed


# What torchvision's detectors compute with; other values of these keys change detections.
_REQUIRED: dict[str, Any] = {
    "MODEL.CONVENTION": "torchvision",
    "INPUT.TO_BGR255": False,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.FPN.USE_RELU": False,
    "MODEL.RPN.MIN_SIZE": 1e-3,
    "MODEL.CLS_AGNOSTIC_BBOX_REG": False,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlign",
    "MODEL.ROI_MASK_HEAD.POOLER_TYPE": "ROIAlign",
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_TYPE": "ROIAlign",
    "TEST.NMS.METHOD": "nms",
}
_IMAGE_SIZE = (128, 160)  # of the check, in pixels
_MIN_AGREEMENT = 0.95  # of detections, because rounding may change the order of similar ones


def export_to_torchvision(cfg: CfgNode, model: nn.Module) -> tuple[StateDict, str]:
    """Return a state dict for torchvision, and the arguments that its model needs besides.

    Both models run on an image, and must find the same objects.

    Raises:
        ValueError: torchvision has no such model. The message names the keys.
    """
    values = dict(flatten(cfg))
    wrong = [
        f"{key} {values[key]} (needed: {needed})"
        for key, needed in _REQUIRED.items()
        if values[key] != needed and _matters(cfg, key)
    ]
    if wrong:
        raise ValueError(
            f"torchvision would find other objects with these weights: its models cannot have "
            f'{", ".join(wrong)}. Train a model with the keys in "For torchvision" of '
            "docs/weights.md to export it"
        )
    state = to_torchvision(model.state_dict())
    try:
        reference = build_torchvision_model(cfg, state)
        reference.load_state_dict(state)
        agreement, count = _agreement(cfg, model, state)
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"torchvision has no such model ({reason})") from error
    if agreement < _MIN_AGREEMENT:
        raise ValueError(
            f"torchvision finds only {agreement:.0%} of {count} detections with these weights, so "
            "some key of the config has no counterpart in torchvision. Train a model with the keys "
            'in "For torchvision" of docs/weights.md to export it'
        )
    test = cfg.INPUT
    anchors = cfg.MODEL.RETINANET if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else cfg.MODEL.RPN
    settings = (
        f"min_size {test.MIN_SIZE_TEST}, max_size {test.MAX_SIZE_TEST}, "
        f"image_mean {test.PIXEL_MEAN}, image_std {test.PIXEL_STD}, "
        f"anchor sizes {anchors.ANCHOR_SIZES}, aspect ratios {anchors.ASPECT_RATIOS}"
    )
    if cfg.MODEL.RESNETS.NORM == "FrozenBN":
        settings += f", eps of FrozenBatchNorm2d {convention_of(cfg).frozen_norm_eps}"
    return state, settings


def _matters(cfg: CfgNode, key: str) -> bool:
    """Return True if the model has the part that a key configures."""
    model, section = cfg.MODEL, key.split(".")[1]
    if section in ("ROI_MASK_HEAD", "ROI_KEYPOINT_HEAD"):
        return bool(model[f"{section.split('_')[1]}_ON"])
    if section == "RESNETS":
        return model.BACKBONE.CONV_BODY.startswith("R-")
    rcnn_only = ("RPN", "ROI_BOX_HEAD", "CLS_AGNOSTIC_BBOX_REG")
    return section not in rcnn_only or model.META_ARCHITECTURE != "RetinaNet"


def _agreement(cfg: CfgNode, model: nn.Module, state: StateDict) -> tuple[float, int]:
    """Return the fraction of detections that torchvision finds too, and their number."""
    every = cfg.clone()
    every.defrost()
    every.MODEL.DEVICE, every.MODEL.RETINANET.INFERENCE_TH = "cpu", 0.0
    every.MODEL.ROI_HEADS.SCORE_THRESH = 0.0
    every.INPUT.MIN_SIZE_TEST, every.INPUT.MAX_SIZE_TEST = _IMAGE_SIZE
    own, reference = build_model(every), build_torchvision_model(every, state)
    own.load_state_dict(model.state_dict())
    reference.load_state_dict(state)
    noise = torch.rand(3, *(side // 8 for side in _IMAGE_SIZE), generator=torch.Generator())
    image = nn.functional.interpolate(noise[None], _IMAGE_SIZE, mode="bilinear")[0].mul(255).byte()
    with torch.no_grad():
        found = own.eval()([image])[0]
        expected = reference.eval()([image / 255])[0]
    same = box_iou(found["boxes"], expected["boxes"]) > 0.9
    same &= (found["scores"][:, None] - expected["scores"]).abs() < 0.01
    same &= found["labels"][:, None] == expected["labels"]
    count = max(len(found["boxes"]), len(expected["boxes"]))
    return (int(same.any(1).sum()) / count if count else 1.0), count


def build_torchvision_model(cfg: CfgNode, state: StateDict) -> nn.Module:
    """Build torchvision's detector of a config, without weights; `state` has their shapes."""
    test, model, heads = cfg.INPUT, cfg.MODEL, cfg.MODEL.ROI_HEADS
    options: dict[str, Any] = {
        "min_size": test.MIN_SIZE_TEST, "max_size": test.MAX_SIZE_TEST,
        "image_mean": list(test.PIXEL_MEAN), "image_std": list(test.PIXEL_STD),
    }  # fmt: skip
    retinanet = model.META_ARCHITECTURE == "RetinaNet"
    backbone = _backbone(cfg, retinanet)
    section = model.RETINANET if retinanet else model.RPN
    sizes = [size if isinstance(size, tuple) else (size,) for size in section.ANCHOR_SIZES]
    if retinanet and section.SCALES_PER_OCTAVE > 1:
        steps = [section.OCTAVE ** (k / section.SCALES_PER_OCTAVE)
                 for k in range(section.SCALES_PER_OCTAVE)]  # fmt: skip
        sizes = [tuple(size * step for size in row for step in steps) for row in sizes]
    anchors = AnchorGenerator(tuple(sizes), (tuple(section.ASPECT_RATIOS),) * len(sizes))
    per_cell = anchors.num_anchors_per_location()[0]
    if retinanet:
        classes = len(state["head.classification_head.cls_logits.bias"]) // per_cell
        norm = partial(nn.GroupNorm, 32) if section.NORM == "GN" else None
        return RetinaNet(
            backbone, classes, anchor_generator=anchors,
            head=RetinaNetHead(backbone.out_channels, per_cell, classes, norm_layer=norm),
            score_thresh=section.INFERENCE_TH, nms_thresh=section.NMS_TH,
            topk_candidates=section.PRE_NMS_TOP_N, detections_per_img=heads.DETECTIONS_PER_IMG,
            **options,
        )  # fmt: skip
    box = model.ROI_BOX_HEAD
    classes, hidden = state["roi_heads.box_predictor.cls_score.weight"].shape
    pooled = (backbone.out_channels, box.POOLER_RESOLUTION, box.POOLER_RESOLUTION)
    box_head: nn.Module = faster.TwoMLPHead(pooled[0] * pooled[1] ** 2, hidden)
    if "Xconv" in box.FEATURE_EXTRACTOR:
        widths = [box.CONV_HEAD_DIM] * box.NUM_STACKED_CONVS
        box_norm = nn.BatchNorm2d if box.NORM == "BN" else None
        box_head = faster.FastRCNNConvFCHead(pooled, widths, [hidden], norm_layer=box_norm)
    rpn = model.RPN
    options |= {
        "rpn_anchor_generator": anchors,
        "rpn_head": RPNHead(backbone.out_channels, per_cell, conv_depth=rpn.NUM_CONVS),
        "rpn_pre_nms_top_n_test": rpn.PRE_NMS_TOP_N_TEST,
        "rpn_post_nms_top_n_test": rpn.FPN_POST_NMS_TOP_N_TEST,
        "rpn_nms_thresh": rpn.NMS_THRESH,
        "rpn_score_thresh": rpn.SCORE_THRESH,
        "box_roi_pool": _pooler(box),
        "box_head": box_head,
        "box_predictor": faster.FastRCNNPredictor(hidden, classes),
        "box_score_thresh": heads.SCORE_THRESH,
        "box_nms_thresh": heads.NMS,
        "box_detections_per_img": heads.DETECTIONS_PER_IMG,
        "bbox_reg_weights": heads.BBOX_REG_WEIGHTS,
    }
    if model.MASK_ON:
        node = model.ROI_MASK_HEAD
        mask_norm = nn.BatchNorm2d if node.NORM == "BN" else None
        inner = state["roi_heads.mask_predictor.conv5_mask.weight"].shape[1]
        convs = MaskRCNNHeads(pooled[0], node.CONV_LAYERS, node.DILATION, norm_layer=mask_norm)
        return MaskRCNN(
            backbone, mask_roi_pool=_pooler(node), mask_head=convs,
            mask_predictor=MaskRCNNPredictor(node.CONV_LAYERS[-1], inner, classes), **options,
        )  # fmt: skip
    if model.KEYPOINT_ON:
        node = model.ROI_KEYPOINT_HEAD
        return KeypointRCNN(
            backbone, keypoint_roi_pool=_pooler(node),
            keypoint_head=KeypointRCNNHeads(pooled[0], node.CONV_LAYERS),
            keypoint_predictor=KeypointRCNNPredictor(node.CONV_LAYERS[-1], node.NUM_CLASSES),
            **options,
        )  # fmt: skip
    return FasterRCNN(backbone, **options)


def _pooler(node: CfgNode) -> MultiScaleRoIAlign:
    levels = ["0", "1", "2", "3"]
    return MultiScaleRoIAlign(levels, node.POOLER_RESOLUTION, node.POOLER_SAMPLING_RATIO)


def _backbone(cfg: CfgNode, retinanet: bool) -> nn.Module:
    model, eps = cfg.MODEL, convention_of(cfg).frozen_norm_eps
    norms = {"FrozenBN": partial(FrozenBatchNorm2d, eps=eps), "BN": nn.BatchNorm2d}
    norm = norms[model.RESNETS.NORM]
    if model.BACKBONE.CONV_BODY.startswith("MobileNet"):
        return mobilenet_backbone(
            backbone_name="mobilenet_v3_large", weights=None, fpn=True, norm_layer=norm,
            trainable_layers=6,
        )  # fmt: skip
    options = build_resnet_options(cfg)
    block = resnet.BasicBlock if options.depth < 50 else resnet.Bottleneck
    body = resnet.ResNet(
        block, list(DEPTHS[options.depth]), groups=options.groups,
        width_per_group=options.width_per_group, norm_layer=norm,
    )  # fmt: skip
    stages = (3, 4, 5) if retinanet else (2, 3, 4, 5)
    channels = [options.channels(stage) for stage in stages]
    out = model.RESNETS.BACKBONE_OUT_CHANNELS or 256
    top = LastLevelMaxPool()
    if retinanet:
        top = LastLevelP6P7(channels[-1] if model.RETINANET.USE_C5 else out, out)
    names = {f"layer{stage - 1}": str(number) for number, stage in enumerate(stages)}
    fpn_norm = nn.BatchNorm2d if model.FPN.NORM == "BN" else None
    return BackboneWithFPN(body, names, channels, out, extra_blocks=top, norm_layer=fpn_norm)
