"""Heads of the region proposal network: objectness and box deltas of every anchor.

Shapes: B images, levels [B, C, H_l, W_l], A anchors per cell.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.layers.conv_block import conv_block, init_normal
from detlite.registry import Registry

RPN_HEADS: Registry[Callable[[CfgNode, int, int], nn.Module]] = Registry(
    "RPN head", {"FBNet": "detlite.modeling.backbone.fbnet"}
)


class RPNHead(nn.Module):
    """Layers shared by all levels, then a 1x1 convolution each for objectness and box deltas."""

    def add_predictors(self, channels: int, anchors_per_cell: int, *convs: nn.Conv2d) -> None:
        """Create the last layers, and draw their weights and the weights of `convs`."""
        self.cls_logits = nn.Conv2d(channels, anchors_per_cell, 1)
        self.bbox_pred = nn.Conv2d(channels, anchors_per_cell * 4, 1)
        for layer in (*convs, self.cls_logits, self.bbox_pred):
            init_normal(layer, std=0.01)

    def embed(self, level: Tensor) -> Tensor:
        """Compute the features of a level [B, C, H_l, W_l]."""
        raise NotImplementedError

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Predict logits [B, A, H_l, W_l] and deltas [B, 4 A, H_l, W_l] of each level."""
        hidden = [self.embed(level) for level in features]
        return [self.cls_logits(x) for x in hidden], [self.bbox_pred(x) for x in hidden]


class SingleConvRPNHead(RPNHead):
    """RPN head of 3x3 convolutions."""

    def __init__(self, in_channels: int, anchors_per_cell: int, num_convs: int = 1) -> None:
        super().__init__()
        convs = [nn.Conv2d(in_channels, in_channels, 3, padding=1) for _ in range(num_convs)]
        self.conv = convs[0]
        self.more_convs = nn.ModuleList(convs[1:])
        self.add_predictors(in_channels, anchors_per_cell, *convs)

    def embed(self, level: Tensor) -> Tensor:
        """Apply the convolutions and ReLU to [B, C, H_l, W_l]."""
        hidden = F.relu(self.conv(level))
        for conv in self.more_convs:
            hidden = F.relu(conv(hidden))
        return hidden


class SeparableRPNHead(RPNHead):
    """RPN head of depthwise separable convolutions, see `conv_block`."""

    def __init__(self, in_channels: int, anchors_per_cell: int, num_convs: int = 1) -> None:
        super().__init__()
        widths = [in_channels] * num_convs
        self.convs = nn.Sequential(
            *(conv_block(width, width, 3, relu=True, separable=True) for width in widths)
        )
        self.add_predictors(in_channels, anchors_per_cell)

    def embed(self, level: Tensor) -> Tensor:
        """Apply the convolutions to [B, C, H_l, W_l]."""
        return self.convs(level)


@RPN_HEADS.register("SingleConvRPNHead")
def _build_single(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
    return SingleConvRPNHead(in_channels, anchors_per_cell, cfg.MODEL.RPN.NUM_CONVS)


@RPN_HEADS.register("SeparableRPNHead")
def _build_separable(cfg: CfgNode, in_channels: int, anchors_per_cell: int) -> nn.Module:
    return SeparableRPNHead(in_channels, anchors_per_cell, cfg.MODEL.RPN.NUM_CONVS)
