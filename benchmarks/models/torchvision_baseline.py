"""Build torchvision's Mask R-CNN from a config and the weights of detlite's model."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from yacs.config import CfgNode

from detlite.config import ConfigError, load_config
from detlite.conversion.torchvision import TORCHVISION
from detlite.modeling.build import build_model
from detlite.modeling.detection_model import DetectionModel
from detlite.modeling.layers.norm import build_norm

# Fixed properties of torchvision's model.
_TORCHVISION: dict[str, Any] = {
    "MODEL.WEIGHT": "",
    "MODEL.CONVENTION": "torchvision",
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.RPN.STRADDLE_THRESH": -1,
    "MODEL.RPN.MIN_SIZE": 1e-3,
    "MODEL.RPN.FPN_POST_NMS_PER_BATCH": False,
    "MODEL.ROI_BOX_HEAD.POOLER_TYPE": "ROIAlign",
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": 1 / 9,
    "MODEL.ROI_MASK_HEAD.POOLER_TYPE": "ROIAlign",
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": 2,
    "INPUT.TO_BGR255": False,
    "INPUT.PIXEL_MEAN": [0.485, 0.456, 0.406],
    "INPUT.PIXEL_STD": [0.229, 0.224, 0.225],
    "DATALOADER.SIZE_DIVISIBILITY": 32,
}


def comparable_config(config: str | Path, opts: Sequence[Any] = ()) -> CfgNode:
    """Load a config and set the keys that are fixed in torchvision's model.

    Args:
        config: YAML file.
        opts: overrides, applied last.

    Raises:
        ConfigError: the config is invalid, or torchvision has no such model.
    """
    fixed = [item for pair in _TORCHVISION.items() for item in pair]
    cfg = load_config(config, [*fixed, *opts])
    name, resnets = cfg.MODEL.BACKBONE.CONV_BODY, cfg.MODEL.RESNETS
    if not (
        name.startswith("R-")
        and name.endswith("-FPN")
        and cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN"
        and cfg.MODEL.MASK_ON
        and not cfg.MODEL.KEYPOINT_ON
        and resnets.NORM in ("FrozenBN", "BN", "GN")
        and not any(resnets.STAGE_WITH_DCN)
    ):
        raise ConfigError(
            f"Cannot compare {config} with torchvision, which only has Mask R-CNN with a plain "
            "ResNet and FPN: choose another --config"
        )
    return cfg


def seeded_model(cfg: CfgNode) -> DetectionModel:
    """Build detlite's model with random weights and activations of a normal magnitude."""
    torch.manual_seed(cfg.SEED)
    model = build_model(cfg)
    model.categories = [{"id": k, "name": f"class {k}"} for k in range(1, model.num_classes)]
    depth = int(cfg.MODEL.BACKBONE.CONV_BODY.split("-")[1])
    for name, tensor in model.state_dict().items():
        # Norms with initial statistics would double the activations in every block.
        if name.endswith("norm2.weight" if depth < 50 else "norm3.weight"):
            tensor.fill_(0.25)
    return model


def torchvision_model(cfg: CfgNode, model: DetectionModel) -> nn.Module:
    """Build torchvision's detector with a copy of the weights of `model`.

    Args:
        cfg: config of `comparable_config`.
        model: detlite's model of this config.
    """
    backbone = _backbone(cfg)
    channels, node = backbone.out_channels, cfg.MODEL
    sizes = tuple(
        tuple(size) if isinstance(size, tuple) else (size,) for size in node.RPN.ANCHOR_SIZES
    )
    ratios = tuple(node.RPN.ASPECT_RATIOS)
    anchors = AnchorGenerator(sizes, (ratios,) * len(sizes))
    box, mask, heads = node.ROI_BOX_HEAD, node.ROI_MASK_HEAD, node.ROI_HEADS
    baseline = MaskRCNN(
        backbone,
        min_size=cfg.INPUT.MIN_SIZE_TEST,
        max_size=cfg.INPUT.MAX_SIZE_TEST,
        image_mean=list(cfg.INPUT.PIXEL_MEAN),
        image_std=list(cfg.INPUT.PIXEL_STD),
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(channels, anchors.num_anchors_per_location()[0]),
        rpn_pre_nms_top_n_train=node.RPN.PRE_NMS_TOP_N_TRAIN,
        rpn_pre_nms_top_n_test=node.RPN.PRE_NMS_TOP_N_TEST,
        rpn_post_nms_top_n_train=node.RPN.FPN_POST_NMS_TOP_N_TRAIN,
        rpn_post_nms_top_n_test=node.RPN.FPN_POST_NMS_TOP_N_TEST,
        rpn_nms_thresh=node.RPN.NMS_THRESH,
        rpn_fg_iou_thresh=node.RPN.FG_IOU_THRESHOLD,
        rpn_bg_iou_thresh=node.RPN.BG_IOU_THRESHOLD,
        rpn_batch_size_per_image=node.RPN.BATCH_SIZE_PER_IMAGE,
        rpn_positive_fraction=node.RPN.POSITIVE_FRACTION,
        box_head=TwoMLPHead(channels * box.POOLER_RESOLUTION**2, box.MLP_HEAD_DIM),
        box_predictor=FastRCNNPredictor(box.MLP_HEAD_DIM, box.NUM_CLASSES),
        box_score_thresh=heads.SCORE_THRESH,
        box_nms_thresh=heads.NMS,
        box_detections_per_img=heads.DETECTIONS_PER_IMG,
        box_fg_iou_thresh=heads.FG_IOU_THRESHOLD,
        box_bg_iou_thresh=heads.BG_IOU_THRESHOLD,
        box_batch_size_per_image=heads.BATCH_SIZE_PER_IMAGE,
        box_positive_fraction=heads.POSITIVE_FRACTION,
        mask_head=MaskRCNNHeads(channels, mask.CONV_LAYERS, mask.DILATION),
        mask_predictor=MaskRCNNPredictor(
            mask.CONV_LAYERS[-1], mask.CONV_LAYERS[-1], box.NUM_CLASSES
        ),
        _skip_resize=True,  # in training, where detlite's loader resizes
    )
    names = TORCHVISION.rename({name: name for name in baseline.state_dict()})
    state = model.state_dict()
    baseline.load_state_dict({name: state[own_name] for own_name, name in names.items()})
    return baseline.to(model.device)


def _backbone(cfg: CfgNode) -> BackboneWithFPN:
    depth = cfg.MODEL.BACKBONE.CONV_BODY.split("-")[1]
    norms = {"FrozenBN": FrozenBatchNorm2d, "BN": nn.BatchNorm2d, "GN": partial(_group_norm, cfg)}
    norm = norms[cfg.MODEL.RESNETS.NORM]
    resnet = getattr(torchvision.models, f"resnet{depth}")(weights=None, norm_layer=norm)
    stages = [("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",)]
    for names in stages[: cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT]:
        for name in names:
            resnet.get_submodule(name).requires_grad_(False)
    widths = [resnet.fc.in_features // 2**k for k in (3, 2, 1, 0)]
    layers = {f"layer{k + 1}": str(k) for k in range(4)}
    out_channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 256
    return BackboneWithFPN(resnet, layers, widths, out_channels, LastLevelMaxPool())


def _group_norm(cfg: CfgNode, channels: int) -> nn.GroupNorm:
    """Build torch's group norm with the config's groups and epsilon."""
    norm: Any = build_norm(cfg, "GN")(channels)
    return nn.GroupNorm(norm.num_groups, channels, eps=norm.eps)


@torch.no_grad()
def spread_scores(model: DetectionModel, image: torch.Tensor, threshold: float, count: int) -> None:
    """Scale the class scores of a random model so that about `count` of them pass a threshold.

    Before, all classes of all boxes have almost the same score. The mean over the boxes is
    subtracted, and a bisection finds the scale.

    Args:
        model: model in evaluation mode.
        image: uint8 [3, H, W], the input whose scores are scaled.
        threshold: score after the softmax, 0 to 1.
        count: number of pairs of a box and a foreground class above the threshold.
    """
    layer: Any = model.roi_heads.box.get_submodule("predictor.cls_score")
    outputs: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, logits: outputs.append(logits))
    model.detect([image])
    hook.remove()
    logits = outputs[0] - layer.bias
    mean = logits.mean(dim=0)

    def count_passing(factor: float) -> int:
        scores = (factor * (logits - mean)).softmax(dim=1)[:, 1:]
        return int((scores > threshold).sum())

    low, high = 0.0, 64 / max(logits.std().item(), 1e-6)
    for _ in range(24):
        factor = (low + high) / 2
        low, high = (factor, high) if count_passing(factor) < count else (low, factor)
    layer.weight.mul_(high)
    layer.bias.copy_(-high * mean)
