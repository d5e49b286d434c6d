"""The RPN head and the feature extractors that an FBNet architecture defines beside its body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from yacs.config import CfgNode

from ..backbone import Backbone
from ..box_head import BOX_EXTRACTORS
from ..extractors import Extractor
from ..keypoint_head import KEYPOINT_EXTRACTORS
from ..layers import init_normal
from ..mask_head import MASK_EXTRACTORS
from ..pooler import Pooler, build_pooler
from ..rpn_head import RPN_HEADS
from .blocks import BlockSpec, FBNetSpec, make_blocks, make_last, side_after, with_stride
from .body import fbnet_norm, fbnet_spec, part_blocks


class FBNetRPNHead(nn.Module):
    """Blocks, then objectness and box deltas for each anchor of a cell.

    Args:
        spec: what all blocks share.
        blocks: applied to every level.
        in_channels: C.
        anchors_per_cell: A.
    """

    def __init__(
        self,
        spec: FBNetSpec,
        blocks: Sequence[BlockSpec],
        in_channels: int,
        anchors_per_cell: int,
    ) -> None:
        super().__init__()
        self.head, channels = make_blocks(spec, blocks, in_channels)
        self.cls_logits = nn.Conv2d(channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(channels, anchors_per_cell * 4, 1)
        for layer in (self.cls_logits, self.bbox_pred):
            init_normal(layer, std=0.01)

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> logits [B, A, H_l, W_l] and deltas [B, 4 A, H_l, W_l]."""
        hidden = [self.head(feature) for feature in features]
        return [self.cls_logits(x) for x in hidden], [self.bbox_pred(x) for x in hidden]


@RPN_HEADS.register("FBNet.rpn_head")
def _build_rpn_head(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
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
    return FBNetRPNHead(spec, last, in_channels, anchors_per_cell)


class FBNetFeatureExtractor(Extractor):
    """Pools and applies blocks.

    Args:
        pooler: what pools the RoIs.
        in_channels: of every level.
        spec: what all blocks share.
        blocks: applied to what is pooled, S x S.
        last_channels, last_scale: of a 1x1 after them, see `make_last`.
    """

    def __init__(
        self,
        pooler: Pooler,
        in_channels: int,
        spec: FBNetSpec,
        blocks: Sequence[BlockSpec],
        last_channels: int,
        last_scale: float,
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.blocks, channels = make_blocks(spec, blocks, in_channels)
        self.last, self.out_channels = make_last(spec, last_channels, last_scale, channels)
        self.out_resolution = side_after(blocks, pooler.resolution)

    def forward(self, features: list[Tensor], rois: Tensor) -> Tensor:
        """Levels [B, C, H_l, W_l] and RoIs [R, 5] -> [R, out_channels, S', S']."""
        return self.last(self.blocks(self.pooler(features, rois)))


def _build_extractor(
    cfg: CfgNode,
    backbone: Backbone,
    head: str,
    part: str,
    numbers: Sequence[int],
    stride: int,
    last_scale: float,
) -> FBNetFeatureExtractor:
    """The blocks of a part of the architecture.

    Args:
        cfg: the config.
        backbone: what is pooled from.
        head: the section of the config that says how.
        part: the part of the architecture.
        numbers: the blocks of its stage that are used; none: all.
        stride: of the first of them, instead of the architecture's; 0: the architecture's.
        last_scale: see `make_last`.
    """
    spec, architecture = fbnet_spec(cfg)
    return FBNetFeatureExtractor(
        build_pooler(cfg, head, backbone),
        backbone.out_channels,
        spec,
        with_stride(part_blocks(architecture, part, numbers), stride),
        architecture.last,
        last_scale,
    )


@BOX_EXTRACTORS.register("FBNet.roi_head")
def _build_box_extractor(cfg: CfgNode, backbone: Backbone) -> Extractor:
    node = cfg.MODEL.FBNET
    own = (node.DET_HEAD_BLOCKS, node.DET_HEAD_STRIDE, node.DET_HEAD_LAST_SCALE)
    return _build_extractor(cfg, backbone, "ROI_BOX_HEAD", "bbox", *own)


@MASK_EXTRACTORS.register("FBNet.roi_head_mask")
def _build_mask_extractor(cfg: CfgNode, backbone: Backbone) -> Extractor:
    node = cfg.MODEL.FBNET
    own = (node.MASK_HEAD_BLOCKS, node.MASK_HEAD_STRIDE, node.MASK_HEAD_LAST_SCALE)
    return _build_extractor(cfg, backbone, "ROI_MASK_HEAD", "mask", *own)


@KEYPOINT_EXTRACTORS.register("FBNet.roi_head_keypoints")
def _build_keypoint_extractor(cfg: CfgNode, backbone: Backbone) -> Extractor:
    node = cfg.MODEL.FBNET
    own = (node.KPTS_HEAD_BLOCKS, node.KPTS_HEAD_STRIDE, node.KPTS_HEAD_LAST_SCALE)
    return _build_extractor(cfg, backbone, "ROI_KEYPOINT_HEAD", "kpts", *own)
