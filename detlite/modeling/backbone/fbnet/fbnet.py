"""Backbone, RPN head and feature extractors of FBNet and ChamNet architectures.

FBNet: https://arxiv.org/abs/1812.03443, ChamNet: https://arxiv.org/abs/1812.08934.
"""

import math
from functools import partial

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.backbone import BACKBONES, Backbone
from detlite.modeling.backbone.resnet import init_convs
from detlite.modeling.layers.norm import build_norm
from detlite.modeling.roi_heads.extractors import (
    BOX_EXTRACTORS,
    KEYPOINT_EXTRACTORS,
    MASK_EXTRACTORS,
    Extractor,
)
from detlite.modeling.roi_heads.pooler import Pooler, build_pooler
from detlite.modeling.rpn.head import RPN_HEADS, RPNHead

from .architectures import ARCHITECTURES, Architecture, parse_architecture
from .blocks import FBNetOptions, conv_norm_relu, make_blocks, make_last_conv, output_side


def build_fbnet_options(cfg: CfgNode) -> tuple[FBNetOptions, Architecture]:
    """Build the block options and the architecture of MODEL.FBNET."""
    node = cfg.MODEL.FBNET
    if node.ARCH_DEF:
        architecture = parse_architecture(node.ARCH_DEF)
    elif node.ARCH in ARCHITECTURES:
        architecture = ARCHITECTURES[node.ARCH]
    else:
        raise ValueError(
            f"MODEL.FBNET.ARCH is {node.ARCH!r}, but must be one of {', '.join(ARCHITECTURES)}. "
            "Describe your own architecture in MODEL.FBNET.ARCH_DEF."
        )
    options = FBNetOptions(
        norm=build_norm(cfg, {"bn": "BN", "gn": "GN", "af": "FrozenBN"}[node.BN_TYPE]),
        divisor=node.WIDTH_DIVISOR,
    )
    return options, architecture


class FBNetBackbone(nn.Module):
    """A 3x3 convolution and the stages of the part "backbone"."""

    def __init__(self, options: FBNetOptions, architecture: Architecture) -> None:
        super().__init__()
        channels, stride = architecture.first
        width = options.round_to_divisor(channels)
        self.first = conv_norm_relu(3, width, 3, stride, norm=options.norm, relu=True)
        init_convs(self.first)
        blocks = architecture.blocks("backbone")
        self.stages, self.out_channels = make_blocks(options, blocks, width)
        self.stride = stride * math.prod(block.stride for block in blocks)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute one map [B, out_channels, H / stride, W / stride]."""
        return [self.stages(self.first(x))]


@BACKBONES.register("FBNet")
def _build_fbnet(cfg: CfgNode) -> Backbone:
    body = FBNetBackbone(*build_fbnet_options(cfg))
    return Backbone(body, nn.Identity(), body.out_channels, strides=(body.stride,), pooled=1)


class FBNetRPNHead(RPNHead):
    """RPN head of blocks."""

    def __init__(self, blocks: nn.Module, out_channels: int, anchors_per_cell: int) -> None:
        super().__init__()
        self.head = blocks
        self.add_predictors(out_channels, anchors_per_cell)

    def embed(self, level: Tensor) -> Tensor:
        """Apply the blocks to [B, C, H_l, W_l]."""
        return self.head(level)


@RPN_HEADS.register("FBNet.rpn_head")
def _build_rpn_head(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
    options, architecture = build_fbnet_options(cfg)
    blocks = make_blocks(options, architecture.blocks("rpn"), in_channels)
    return FBNetRPNHead(*blocks, anchors_per_cell)


class FBNetFeatureExtractor(Extractor):
    """Pools and applies blocks, and a 1x1 convolution after them (see `make_last_conv`)."""

    def __init__(
        self, pooler: Pooler, blocks: nn.Module, last: nn.Module, channels: int, resolution: int
    ) -> None:
        super().__init__()
        self.pooler, self.blocks, self.last = pooler, blocks, last
        self.out_channels, self.out_resolution = channels, resolution

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, out_channels, S', S'] from [R, C, S, S]."""
        return self.last(self.blocks(pooled))


def _build_extractor(
    cfg: CfgNode, backbone: Backbone, head: str, part: str
) -> FBNetFeatureExtractor:
    """Build the extractor of MODEL.<head> from a part of the architecture.

    Only the box head has a last convolution, MODEL.FBNET.DET_HEAD_LAST_SCALE.
    """
    options, architecture = build_fbnet_options(cfg)
    blocks = architecture.blocks(part)
    pooler = build_pooler(cfg, head, backbone)
    last_scale = cfg.MODEL.FBNET.DET_HEAD_LAST_SCALE if part == "bbox" else 0.0
    layers, channels = make_blocks(options, blocks, backbone.out_channels)
    last, channels = make_last_conv(options, architecture.last, last_scale, channels)
    side = output_side(blocks, pooler.resolution)
    return FBNetFeatureExtractor(pooler, layers, last, channels, side)


BOX_EXTRACTORS.register("FBNet.roi_head")(
    partial(_build_extractor, head="ROI_BOX_HEAD", part="bbox")
)
MASK_EXTRACTORS.register("FBNet.roi_head_mask")(
    partial(_build_extractor, head="ROI_MASK_HEAD", part="mask")
)
KEYPOINT_EXTRACTORS.register("FBNet.roi_head_keypoints")(
    partial(_build_extractor, head="ROI_KEYPOINT_HEAD", part="kpts")
)
