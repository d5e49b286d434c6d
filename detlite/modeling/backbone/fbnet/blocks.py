"""Inverted residual blocks (https://arxiv.org/abs/1801.04381) of FBNets.

The state dict has the names of maskrcnn-benchmark.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.backbone.resnet import init_convs
from detlite.modeling.layers.norm import Norm

from .architectures import BlockSpec


@dataclass(frozen=True)
class FBNetOptions:
    """Options that all blocks of a model share.

    Attributes:
        norm: after each convolution.
        scale, divisor: widths are multiplied by `scale` and rounded to a multiple of `divisor`.
        no_depthwise_norm, no_depthwise_relu: omit norm or ReLU after depthwise convolutions.
    """

    norm: Norm
    scale: float
    divisor: int
    no_depthwise_norm: bool
    no_depthwise_relu: bool

    def width(self, channels: float) -> int:
        """Scale and round the channels of an architecture."""
        return self.divisible(int(channels * self.scale))

    def divisible(self, channels: int) -> int:
        """Round to the nearest multiple of `divisor`, at least one."""
        return max(math.floor(channels / self.divisor + 0.5), 1) * self.divisor


# ir_k<kernel>, twice (_sep, or k33), fixed expansion (_e) or shuffled groups (_s), squeeze (_se)
_OPERATOR = re.compile(r"ir_k(33|[1357])(_sep)?(?:_e([136]))?(?:_s([24]))?(_se)?")


class InvertedResidual(nn.Module):
    """1x1 convolution to a wider map, depthwise convolution, 1x1 back, and a possible shortcut."""

    def __init__(self, options: FBNetOptions, block: BlockSpec, in_channels: int) -> None:
        super().__init__()
        match = _OPERATOR.fullmatch(block.operator)
        if not match:
            raise ValueError(
                f"MODEL.FBNET.ARCH_DEF: unknown operator {block.operator!r}; known are "
                "inverted residual blocks such as ir_k3, ir_k5_e6, ir_k3_s4, ir_k3_sep, ir_k5_e3_se"
            )
        kernel, separate, fixed, groups, squeeze = match.groups()
        kernel_size = int(kernel[0])
        self.groups = int(groups or 1)
        expansion = int(fixed or {"4": 4, "2": 1}.get(groups or "", block.expansion))
        out_channels = options.width(block.channels)
        width = options.divisible(in_channels * expansion)
        self.upsample, stride = max(-block.stride, 1), max(block.stride, 1)
        self.shortcut = block.stride == 1 and in_channels == out_channels
        norm, depthwise = options.norm, partial(conv_norm_relu, width, width, kernel_size)
        self.pw = conv_norm_relu(in_channels, width, norm=norm, relu=True, groups=self.groups)
        self.dw = nn.Sequential()  # empty for a 1x1 kernel
        last: dict[str, Any] = {
            "norm": None if options.no_depthwise_norm else norm,
            "relu": not options.no_depthwise_relu,
        }
        if kernel_size > 1 and (separate or kernel == "33"):
            self.dw.add_module("dw1", depthwise(stride, width, norm=norm, relu=True))
            self.dw.add_module("dw2", depthwise(1, width, **last))
        elif kernel_size > 1:
            self.dw = depthwise(stride, width, **last)
        self.pwl = conv_norm_relu(width, out_channels, norm=norm, relu=False, groups=self.groups)
        self.se4 = SqueezeExcitation(out_channels) if squeeze else nn.Identity()
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        out = self.pw(x)
        if self.groups > 1:
            out = out.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        if self.upsample > 1:
            out = F.interpolate(out, scale_factor=float(self.upsample), mode="nearest")
        out = self.pwl(self.dw(out))
        return self.se4(out + x if self.shortcut else out)


class SqueezeExcitation(nn.Module):
    """Scales channels by weights computed from the whole map (https://arxiv.org/abs/1709.01507)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(channels // 4, 8)
        self.op = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, middle, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of [B, C, H, W]."""
        return x * self.op(x)


def conv_norm_relu(
    in_channels: int,
    out_channels: int,
    kernel_size: int = 1,
    stride: int = 1,
    groups: int = 1,
    *,
    norm: Norm | None,
    relu: bool,
) -> nn.Sequential:
    """Create a convolution without bias that keeps the map size, an optional norm and ReLU."""
    padding = kernel_size // 2
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False
    )
    layers = nn.Sequential()
    layers.add_module("conv", conv)
    if norm is not None:
        layers.add_module("bn", norm(out_channels))
    if relu:
        layers.add_module("relu", nn.ReLU(inplace=True))
    return layers


def make_blocks(
    options: FBNetOptions, blocks: Sequence[BlockSpec], in_channels: int
) -> tuple[nn.Sequential, int]:
    """Create a sequence of blocks; return it and its output channels."""
    sequence = nn.Sequential()
    for block in blocks:
        layer = InvertedResidual(options, block, in_channels)
        sequence.add_module(f"xif{block.stage}_{block.number}", layer)
        in_channels = layer.out_channels
    init_convs(sequence)
    return sequence, in_channels


def make_last(
    options: FBNetOptions, channels: int, scale: float, in_channels: int
) -> tuple[nn.Module, int]:
    """Create the 1x1 convolution after a head; return it and its output channels.

    Its width is `scale` times the architecture's `channels`, or -`scale` times `in_channels` if
    `scale` is negative. There is no convolution if the width is 0.
    """
    width = int(-scale * in_channels)
    if scale > 0:
        width = int(int(channels * max(options.scale, 1.0)) * scale)
    if width == 0:
        return nn.Identity(), in_channels
    width = options.divisible(width)
    layer = conv_norm_relu(in_channels, width, norm=options.norm, relu=True)
    init_convs(layer)
    return layer, width


def side_after(blocks: Sequence[BlockSpec], side: int) -> int:
    """Return the side of a square map after the blocks."""
    for block in blocks:
        kernel_1 = block.operator.startswith("ir_k1")
        up, down = max(-block.stride, 1), 1 if kernel_1 else max(block.stride, 1)
        side = -(-side * up // down)
    return side
