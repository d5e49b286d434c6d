"""Export weights to torchvision, and check that torchvision detects the same objects."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection import faster_rcnn as faster
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN, mobilenet_backbone
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7
from yacs.config import CfgNode

from detlite.checkpoint.assumptions import unused_sections
from detlite.config.loading import flatten
from detlite.conventions import convention_of
from detlite.conversion.checkpoint_source import StateDict
from detlite.conversion.torchvision import TORCHVISION
from detlite.modeling import build_model
from detlite.modeling.backbone.resnet import DEPTHS, build_resnet_options

# Settings of torchvision's detectors; other values of these keys change detections.
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
    "MODEL.ROI_BOX_HEAD.PASSES": 1,
    "TEST.NMS.METHOD": "nms",
    "TEST.NMS.CLASS_AGNOSTIC": False,
    "TEST.TILE": 0,
    "TEST.BBOX_AUG.ENABLED": False,
}
_IMAGE_SIZE = (128, 160)  # of the check, in pixels
_MIN_AGREEMENT = 0.95  # fraction of equal detections; torchvision rounds and breaks ties otherwise
_ADVICE = 'Train a model with the keys in "For torchvision" of docs/weights.md to export it'


def to_torchvision(state: Mapping[str, Tensor], reference: nn.Module) -> StateDict:
    """Rename a state dict for `reference`, a detector of torchvision.

    Raises:
        ValueError: an entry exists only in one of the two models.
    """
    names = TORCHVISION.rename({name: name for name in reference.state_dict()})
    if unmatched := sorted(state.keys() ^ names.keys()):
        raise ValueError(f"only one of the two models has {unmatched[0]}")
    return {name: state[detlite_name] for detlite_name, name in names.items()}


def export_to_torchvision(cfg: CfgNode, model: nn.Module) -> tuple[StateDict, str]:
    """Return a state dict for torchvision, and a text with the arguments that its model needs.

    Both models run on an image, and must detect the same objects.

    Raises:
        ValueError: torchvision has no such model. The message names the keys.
    """
    values = dict(flatten(cfg))
    wrong = [
        f"{key} {values[key]} (needed: {needed})"
        for key, needed in _REQUIRED.items()
        if values[key] != needed and not key.startswith(unused_sections(cfg))
    ]
    if wrong:
        raise ValueError(
            "torchvision would detect other objects with these weights: its models do not support "
            f"{', '.join(wrong)}. {_ADVICE}"
        )
    try:
        state, agreement, count = _compare(cfg, model)
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"torchvision has no such model ({reason})") from error
    if agreement < _MIN_AGREEMENT:
        raise ValueError(
            f"torchvision finds only {agreement:.0%} of {count} detections with these weights: "
            f"torchvision has no counterpart for some key of the config. {_ADVICE}"
        )
    test = cfg.INPUT
    anchors = cfg.MODEL.RETINANET if cfg.MODEL.META_ARCHITECTURE == "RetinaNet" else cfg.MODEL.RPN
    settings = (
        f"min_size {test.MIN_SIZE_TEST}, max_size {test.MAX_SIZE_TEST}, "
        f"image_mean {test.PIXEL_MEAN}, image_std {test.PIXEL_STD}, "
        f"anchor sizes {anchors.ANCHOR_SIZES}, aspect ratios {anchors.ASPECT_RATIOS}"
    )
    norm = _body_norm(cfg)
    settings += f", eps of {norm.func.__name__} {norm.keywords['eps']}"
    return state, settings


def _compare(cfg: CfgNode, model: nn.Module) -> tuple[StateDict, float, int]:
    """Return torchvision's state dict, the fraction of equal detections, and their number."""
    cfg = cfg.clone()
    cfg.defrost()
    cfg.MODEL.DEVICE, cfg.MODEL.RETINANET.INFERENCE_TH = "cpu", 0.0
    cfg.MODEL.ROI_HEADS.SCORE_THRESH = 0.0
    cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST = _IMAGE_SIZE
    copy, reference = build_model(cfg), build_torchvision_model(cfg, model.state_dict())
    copy.load_state_dict(model.state_dict())
    state = to_torchvision(copy.state_dict(), reference)
    reference.load_state_dict(state)
    noise = torch.rand(3, *(side // 8 for side in _IMAGE_SIZE), generator=torch.Generator())
    image = nn.functional.interpolate(noise[None], _IMAGE_SIZE, mode="bilinear")[0].mul(255).byte()
    with torch.no_grad():  # in float64, because rounding changes the order of similar scores
        found = copy.eval().double()([image])[0]
        expected = reference.eval().double()([image.double() / 255])[0]
    # IoU is undefined for boxes clipped to the border of the image, so coordinates are compared.
    same = torch.cdist(found["boxes"].double(), expected["boxes"].double(), torch.inf) < 0.1
    same &= (found["scores"][:, None] - expected["scores"]).abs() < 0.01
    same &= found["labels"][:, None] == expected["labels"]
    count = max(len(found["boxes"]), len(expected["boxes"]))
    return state, (int(same.any(1).sum()) / count if count else 1.0), count


def build_torchvision_model(cfg: CfgNode, state: Mapping[str, Tensor]) -> nn.Module:
    """Build torchvision's detector for a config, with random weights; `state`: detlite's weights,
    for their shapes."""
    inputs, model, heads = cfg.INPUT, cfg.MODEL, cfg.MODEL.ROI_HEADS
    retinanet = model.META_ARCHITECTURE == "RetinaNet"
    backbone = _backbone(cfg, retinanet)
    section = model.RETINANET if retinanet else model.RPN
    sizes = [size if isinstance(size, tuple) else (size,) for size in section.ANCHOR_SIZES]
    if retinanet:
        steps = range(section.SCALES_PER_OCTAVE)
        factors = [section.OCTAVE ** (step / section.SCALES_PER_OCTAVE) for step in steps]
        sizes = [tuple(size * factor for size in row for factor in factors) for row in sizes]
    anchors = AnchorGenerator(tuple(sizes), (tuple(section.ASPECT_RATIOS),) * len(sizes))
    per_cell = anchors.num_anchors_per_location()[0]
    options: dict[str, Any] = {
        "min_size": inputs.MIN_SIZE_TEST, "max_size": inputs.MAX_SIZE_TEST,
        "image_mean": list(inputs.PIXEL_MEAN), "image_std": list(inputs.PIXEL_STD),
    }  # fmt: skip
    if retinanet:
        classes = len(state["head.cls_logits.bias"]) // per_cell
        norm = partial(nn.GroupNorm, 32) if section.NORM == "GN" else None
        return RetinaNet(
            backbone, classes, anchor_generator=anchors,
            head=RetinaNetHead(backbone.out_channels, per_cell, classes, norm_layer=norm),
            score_thresh=section.INFERENCE_TH, nms_thresh=section.NMS_TH,
            topk_candidates=section.PRE_NMS_TOP_N, detections_per_img=heads.DETECTIONS_PER_IMG,
            **options,
        )  # fmt: skip
    box, mask, keypoint = model.ROI_BOX_HEAD, model.ROI_MASK_HEAD, model.ROI_KEYPOINT_HEAD
    classes, hidden = state["roi_heads.box.predictor.cls_score.weight"].shape
    pooled = (backbone.out_channels, box.POOLER_RESOLUTION, box.POOLER_RESOLUTION)
    box_head: nn.Module = faster.TwoMLPHead(pooled[0] * pooled[1] ** 2, hidden)
    if "Xconv" in box.FEATURE_EXTRACTOR:
        widths = [box.CONV_HEAD_DIM] * box.NUM_STACKED_CONVS
        box_head = faster.FastRCNNConvFCHead(pooled, widths, [hidden], norm_layer=_norm(box))
    options |= {
        "rpn_anchor_generator": anchors,
        "rpn_head": RPNHead(backbone.out_channels, per_cell, conv_depth=section.NUM_CONVS),
        "rpn_pre_nms_top_n_test": section.PRE_NMS_TOP_N_TEST,
        "rpn_post_nms_top_n_test": section.FPN_POST_NMS_TOP_N_TEST,
        "rpn_nms_thresh": section.NMS_THRESH,
        "rpn_score_thresh": section.SCORE_THRESH,
        "box_roi_pool": _pooler(box),
        "box_head": box_head,
        "box_predictor": faster.FastRCNNPredictor(hidden, classes),
        "box_score_thresh": heads.SCORE_THRESH,
        "box_nms_thresh": heads.NMS,
        "box_detections_per_img": heads.DETECTIONS_PER_IMG,
        "bbox_reg_weights": heads.BBOX_REG_WEIGHTS,
    }
    rcnn = FasterRCNN(backbone, **options)
    if model.MASK_ON:
        last, inner = state["roi_heads.mask.predictor.conv5_mask.weight"].shape[:2]
        rcnn.roi_heads.mask_roi_pool = _pooler(mask)
        rcnn.roi_heads.mask_head = MaskRCNNHeads(
            pooled[0], mask.CONV_LAYERS, mask.DILATION, norm_layer=_norm(mask)
        )
        rcnn.roi_heads.mask_predictor = MaskRCNNPredictor(last, inner, classes)
    if model.KEYPOINT_ON:
        widths = keypoint.CONV_LAYERS
        rcnn.roi_heads.keypoint_roi_pool = _pooler(keypoint)
        rcnn.roi_heads.keypoint_head = KeypointRCNNHeads(pooled[0], widths)
        rcnn.roi_heads.keypoint_predictor = KeypointRCNNPredictor(widths[-1], keypoint.NUM_CLASSES)
    return rcnn


def _pooler(node: CfgNode) -> MultiScaleRoIAlign:
    levels = ["0", "1", "2", "3"]
    return MultiScaleRoIAlign(levels, node.POOLER_RESOLUTION, node.POOLER_SAMPLING_RATIO)


def _norm(node: CfgNode) -> type[nn.Module] | None:
    return nn.BatchNorm2d if node.NORM == "BN" else None


def _body_norm(cfg: CfgNode) -> partial[Any]:
    norms: dict[str, partial[Any]] = {
        "FrozenBN": partial(FrozenBatchNorm2d, eps=convention_of(cfg).frozen_norm_eps),
        "BN": partial(nn.BatchNorm2d, eps=cfg.MODEL.RESNETS.BN_EPSILON),
    }
    return norms[cfg.MODEL.RESNETS.NORM]


def _backbone(cfg: CfgNode, retinanet: bool) -> nn.Module:
    model, norm = cfg.MODEL, _body_norm(cfg)
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
    return BackboneWithFPN(
        body, names, channels, out, extra_blocks=top, norm_layer=_norm(model.FPN)
    )
