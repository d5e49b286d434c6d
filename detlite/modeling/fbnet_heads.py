"""The RPN head and the feature extractors that an FBNet architecture defines beside its body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from yacs.config import CfgNode

from .backbone import Backbone
from .backbone.fbnet import (
    fbnet_norm,
    fbnet_spec,
    make_blocks,
    make_last,
    part_blocks,
    side_after,
    with_stride,
)
from .box_head import BOX_EXTRACTORS
from .keypoint_head import KEYPOINT_EXTRACTORS
from .layers import init_normal
from .mask_head import MASK_EXTRACTORS
from .pooler import build_pooler
from .rpn import RPN_HEADS


@RPN_HEADS.register("FBNet.rpn_head")
class FBNetRPNHead(nn.Module):
    """The blocks of the part "rpn", then objectness and box deltas for each anchor of a cell."""

    def __init__(self, cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> None:
        super().__init__()
        node = cfg.MODEL.FBNET
        spec, architecture = fbnet_spec(cfg)
        if node.RPN_BN_TYPE:
            spec = replace(spec, norm=fbnet_norm(cfg, node.RPN_BN_TYPE))
        blocks = part_blocks(architecture, "rpn")
        if len(blocks) < node.RPN_HEAD_BLOCKS:
            raise ValueError(
                f"MODEL.FBNET.RPN_HEAD_BLOCKS is {node.RPN_HEAD_BLOCKS}, but the architecture has "
                f"{len(blocks)}"
            )
        last = blocks[-node.RPN_HEAD_BLOCKS :]  # -0: all
        self.head, channels = make_blocks(spec, last, in_channels)
        self.cls_logits = nn.Conv2d(channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(channels, anchors_per_cell * 4, 1)
        for layer in (self.cls_logits, self.bbox_pred):
            init_normal(layer, std=0.01)

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> logits [B, A, H_l, W_l] and deltas [B, 4 A, H_l, W_l]."""
        hidden = [self.head(feature) for feature in features]
        return [self.cls_logits(x) for x in hidden], [self.bbox_pred(x) for x in hidden]


class FBNetFeatureExtractor(nn.Module):
    """Pools and applies the blocks of a part of the architecture.

    Args:
        cfg: the config.
        backbone: what is pooled from.
        head: the section of the config that says how.
        part: the part of the architecture.
        numbers: the blocks of its stage that are used; none: all.
        stride: of the first of them, instead of the architecture's; 0: the architecture's.
        last_scale: see `make_last`.
    """

    def __init__(
        self,
        cfg: CfgNode,
        backbone: Backbone,
        head: str,
        part: str,
        numbers: Sequence[int],
        stride: int,
        last_scale: float,
    ) -> None:
        super().__init__()
        spec, architecture = fbnet_spec(cfg)
        self.pooler = build_pooler(cfg, head, backbone.strides[: backbone.pooled])
        blocks = with_stride(part_blocks(architecture, part, numbers), stride)
        self.blocks, channels = make_blocks(spec, blocks, backbone.out_channels)
        self.last, self.out_channels = make_last(spec, architecture.last, last_scale, channels)
        self.out_resolution = side_after(blocks, cfg.MODEL[head].POOLER_RESOLUTION)

    def forward(self, features: list[Tensor], boxes: list[Tensor]) -> Tensor:
        """Levels [B, C, H_l, W_l] and boxes of each image -> [R, out_channels, S, S]."""
        return self.last(self.blocks(self.pooler(features, boxes)))


@BOX_EXTRACTORS.register("FBNet.roi_head")
def _box_extractor(cfg: CfgNode, backbone: Backbone) -> FBNetFeatureExtractor:
    node = cfg.MODEL.FBNET
    own = (node.DET_HEAD_BLOCKS, node.DET_HEAD_STRIDE, node.DET_HEAD_LAST_SCALE)
    return FBNetFeatureExtractor(cfg, backbone, "ROI_BOX_HEAD", "bbox", *own)


@MASK_EXTRACTORS.register("FBNet.roi_head_mask")
def _mask_extractor(cfg: CfgNode, backbone: Backbone) -> FBNetFeatureExtractor:
    node = cfg.MODEL.FBNET
    own = (node.MASK_HEAD_BLOCKS, node.MASK_HEAD_STRIDE, node.MASK_HEAD_LAST_SCALE)
    return FBNetFeatureExtractor(cfg, backbone, "ROI_MASK_HEAD", "mask", *own)


@KEYPOINT_EXTRACTORS.register("FBNet.roi_head_keypoints")
def _keypoint_extractor(cfg: CfgNode, backbone: Backbone) -> FBNetFeatureExtractor:
    node = cfg.MODEL.FBNET
    own = (node.KPTS_HEAD_BLOCKS, node.KPTS_HEAD_STRIDE, node.KPTS_HEAD_LAST_SCALE)
    return FBNetFeatureExtractor(cfg, backbone, "ROI_KEYPOINT_HEAD", "kpts", *own)
