"""Heads of separable convolutions: a 3x3 of each channel alone, then a 1x1 across them.

That is 1/9 + 1/C of the multiplications of a 3x3 over C channels (MobileNets,
https://arxiv.org/abs/1704.04861). Shapes: B images, levels [B, C, H_l, W_l], A anchors a cell.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from yacs.config import CfgNode

from detlite.modeling.roi_heads.box_head import BOX_EXTRACTORS, build_box_convs
from detlite.modeling.roi_heads.mask_head import MASK_EXTRACTORS, build_mask_convs
from detlite.modeling.rpn.head import RPN_HEADS

from .basic import init_he, init_normal, init_xavier
from .norm import Norm


def separable_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm | None = None,
    relu: bool = False,
    dilation: int = 1,
) -> nn.Sequential:
    """`layers.conv_block` by a separable convolution, with nothing between its two parts."""
    depthwise = nn.Conv2d(
        in_channels,
        in_channels,
        kernel_size,
        padding=dilation * (kernel_size // 2),
        dilation=dilation,
        groups=in_channels,
        bias=False,  # the 1x1 has one
    )
    pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=norm is None)
    init_xavier(depthwise)  # no ReLU follows it
    if relu:
        init_he(pointwise)
    else:
        init_xavier(pointwise)
    layers: list[nn.Module] = [depthwise, pointwise]
    if norm is not None:
        layers.append(norm(out_channels))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class SeparableRPNHead(nn.Module):
    """A row of separable 3x3s shared by all levels, then objectness and box deltas."""

    def __init__(self, in_channels: int, anchors_per_cell: int, num_convs: int = 1) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            *(separable_block(in_channels, in_channels, 3, relu=True) for _ in range(num_convs))
        )
        self.cls_logits = nn.Conv2d(in_channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(in_channels, anchors_per_cell * 4, 1)
        for layer in (self.cls_logits, self.bbox_pred):
            init_normal(layer, std=0.01)

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Levels [B, C, H_l, W_l] -> logits [B, A, H_l, W_l] and deltas [B, 4 A, H_l, W_l]."""
        hidden = [self.convs(feature) for feature in features]
        return [self.cls_logits(x) for x in hidden], [self.bbox_pred(x) for x in hidden]


@RPN_HEADS.register("SeparableRPNHead")
def _build_rpn_head(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
    return SeparableRPNHead(in_channels, anchors_per_cell, cfg.MODEL.RPN.NUM_CONVS)


BOX_EXTRACTORS.register("SeparableXconv1fcFeatureExtractor")(
    partial(build_box_convs, block=separable_block)
)
MASK_EXTRACTORS.register("SeparableConvFeatureExtractor")(
    partial(build_mask_convs, block=separable_block)
)
