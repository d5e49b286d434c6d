"""Inverted residual blocks (https://arxiv.org/abs/1801.04381) of FBNets.

The state dict has the names of maskrcnn-benchmark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.backbone.resnet import init_convs
from detlite.modeling.layers.norm import Norm

from .architectures import BlockSpec


@dataclass(frozen=True)
class FBNetOptions:
    """Options that all blocks of a model share."""

    norm: Norm  # after each convolution that is not depthwise
    divisor: int  # widths are rounded to a multiple of this

    def round_to_divisor(self, channels: int) -> int:
        """Round to the nearest multiple of `divisor`, at least one."""
        return max(math.floor(channels / self.divisor + 0.5), 1) * self.divisor


class InvertedResidual(nn.Module):
    """1x1 convolution to a wider map, depthwise convolution, 1x1 back, and a possible shortcut."""

    def __init__(self, options: FBNetOptions, block: BlockSpec, in_channels: int) -> None:
        super().__init__()
        self.out_channels = options.round_to_divisor(block.channels)
        width = options.round_to_divisor(in_channels * block.expansion)
        self.upsample, stride = max(-block.stride, 1), max(block.stride, 1)
        self.shortcut = block.stride == 1 and in_channels == self.out_channels
        norm = options.norm
        self.pw = conv_norm_relu(in_channels, width, norm=norm, relu=True)
        self.dw = nn.Sequential()
        if block.kernel > 1:
            self.dw = conv_norm_relu(
                width, width, block.kernel, stride, groups=width, norm=None, relu=False
            )
        self.pwl = conv_norm_relu(width, self.out_channels, norm=norm, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        out = self.pw(x)
        if self.upsample > 1:
            out = F.interpolate(out, scale_factor=float(self.upsample), mode="nearest")
        out = self.pwl(self.dw(out))
        return out + x if self.shortcut else out


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


def make_last_conv(
    options: FBNetOptions, channels: int, scale: float, in_channels: int
) -> tuple[nn.Module, int]:
    """Create the 1x1 convolution after a head; return it and its output channels.

    Its width is `scale` times the architecture's `channels`, or -`scale` times `in_channels` if
    `scale` is negative. There is no convolution if the width is 0.
    """
    width = int(-scale * in_channels)
    if scale > 0:
        width = int(channels * scale)
    if width == 0:
        return nn.Identity(), in_channels
    width = options.round_to_divisor(width)
    layer = conv_norm_relu(in_channels, width, norm=options.norm, relu=True)
    init_convs(layer)
    return layer, width


def output_side(blocks: Sequence[BlockSpec], side: int) -> int:
    """Return the output side of the blocks for a square map of `side` cells."""
    for block in blocks:
        up, down = max(-block.stride, 1), 1 if block.kernel == 1 else max(block.stride, 1)
        side = -(-side * up // down)
    return side
