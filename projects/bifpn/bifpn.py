"""An own network with a BiFPN (EfficientDet, Tan et al., https://arxiv.org/abs/1911.09070).

Shapes: B images, levels [B, C, H_l, W_l], finest first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling import BODIES, NECKS, Backbone, build_norm, conv_block

Norm = Callable[[int], nn.Module]
WIDTHS = {2: 24, 4: 32, 8: 48, 16: 96, 32: 160}  # channels of the map of each stride


@BODIES.register("SmallNet")
class SmallNet(nn.Module):
    """A stem and four stages of separable convolutions. Any neck can use it: SmallNet-FPN."""

    def __init__(self, cfg: CfgNode, strides: Sequence[int]) -> None:
        super().__init__()
        norm = build_norm(cfg, cfg.MODEL.RESNETS.NORM)
        self.strides, self.channels = tuple(strides), [WIDTHS[stride] for stride in strides]
        self.stages = nn.ModuleDict()
        before = 3
        for stride, width in WIDTHS.items():
            if stride > max(strides):
                break
            down = nn.Conv2d(before, width, 3, stride=2, padding=1, bias=False)
            block = conv_block(width, width, 3, norm=norm, relu=True, separable=True)
            self.stages[str(stride)] = nn.Sequential(down, norm(width), nn.ReLU(), block)
            before = width

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute the maps of the requested strides from pixels [B, 3, H, W]."""
        maps = []
        for stride, stage in self.stages.items():
            x = stage(x)
            if int(stride) in self.strides:
                maps.append(x)
        return maps


class WeightedSum(nn.Module):
    """Adds maps with learned weights that sum to 1, and applies a separable convolution."""

    def __init__(self, inputs: int, channels: int, norm: Norm) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(inputs))
        self.conv = conv_block(channels, channels, 3, norm=norm, separable=True)

    def forward(self, *maps: Tensor) -> Tensor:
        """Combine maps [B, C, H, W] of one size."""
        weights = F.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        return self.conv(F.silu(sum(w * x for w, x in zip(weights, maps, strict=True))))


class BiFPNLayer(nn.Module):
    """A pass from the coarsest level to the finest, and one back."""

    def __init__(self, levels: int, channels: int, norm: Norm) -> None:
        super().__init__()
        self.down = nn.ModuleList(WeightedSum(2, channels, norm) for _ in range(levels - 1))
        # The middle levels of the way back have their input as a third map.
        counts = [3] * (levels - 2) + [2]
        self.up = nn.ModuleList(WeightedSum(count, channels, norm) for count in counts)

    def forward(self, levels: list[Tensor]) -> list[Tensor]:
        """Combine levels [B, C, H_l, W_l]."""
        middle = [levels[-1]]
        for level, add in zip(reversed(levels[:-1]), self.down, strict=True):
            above = F.interpolate(middle[0], size=level.shape[2:], mode="nearest")
            middle.insert(0, add(level, above))
        out = [middle[0]]
        for index, add in enumerate(self.up, start=1):
            below = F.max_pool2d(out[-1], 2, ceil_mode=True)
            last = index == len(levels) - 1
            out.append(
                add(levels[index], below) if last else add(levels[index], middle[index], below)
            )
        return out


class BiFPN(nn.Module):
    """Projects the maps of a body to C channels, adds two coarser levels, and applies layers."""

    def __init__(self, widths: Sequence[int], channels: int, layers: int, norm: Norm) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(conv_block(c, channels, 1, norm=norm) for c in widths)
        count = len(widths) + 2
        self.layers = nn.Sequential(*(BiFPNLayer(count, channels, norm) for _ in range(layers)))

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Compute levels [B, C, H_l, W_l] from maps [B, C_l, H_l, W_l]."""
        levels = [conv(x) for conv, x in zip(self.lateral, maps, strict=True)]
        for _ in range(2):
            levels.append(F.max_pool2d(levels[-1], 3, stride=2, padding=1))
        return self.layers(levels)


@NECKS.register("BiFPN")
def build_bifpn(cfg: CfgNode, make_body: Callable[[Sequence[int]], Any]) -> Backbone:
    """Add a BiFPN with levels of stride 4 to 64 to any body: SmallNet-BiFPN, R-50-BiFPN."""
    body, channels = make_body((4, 8, 16)), cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS or 64
    neck = BiFPN(body.channels, channels, 2, build_norm(cfg, cfg.MODEL.FPN.NORM or "BN"))
    return Backbone(body, neck, channels, strides=(4, 8, 16, 32, 64), pooled=4)
