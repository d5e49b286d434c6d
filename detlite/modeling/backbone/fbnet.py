"""Backbone, RPN head and feature extractors of FBNet and ChamNet architectures.

FBNet: https://arxiv.org/abs/1812.03443, ChamNet: https://arxiv.org/abs/1812.08934. Their inverted
residual blocks are those of MobileNetV2 (https://arxiv.org/abs/1801.04381). The architectures and
the names in the state dict are those of maskrcnn-benchmark (fbnet_modeldef.py).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from yacs.config import CfgNode

from detlite.modeling.layers.norm import Norm, build_norm
from detlite.modeling.roi_heads.extractors import (
    BOX_EXTRACTORS,
    KEYPOINT_EXTRACTORS,
    MASK_EXTRACTORS,
    Extractor,
)
from detlite.modeling.roi_heads.pooler import Pooler, build_pooler
from detlite.modeling.rpn.head import RPN_HEADS, RPNHead

from .build import BACKBONES, Backbone
from .resnet import init_convs

_KERNELS = {f"ir_k{size}": size for size in (1, 3, 5, 7)}
_PARTS = ("backbone", "rpn", "bbox", "mask", "kpts")
_DEFAULT_BODY = (
    [(3, 1, 16, 1, 1)],
    [(3, 6, 24, 2, 2)],
    [(3, 6, 32, 3, 2)],
    [(3, 6, 64, 4, 2), (3, 6, 96, 3, 1)],
)
# Channels of the first convolution; equal blocks of each stage: kernel, expansion, channels, number
# of blocks, stride of the first; the stages of each part, except for the backbone, which has the
# first four.
_ARCHITECTURES: dict[str, tuple[int, Sequence[Any], dict[str, Sequence[int]]]] = {
    "default": (
        32,
        (
            *_DEFAULT_BODY,
            [(3, 4, 160, 1, 2), (3, 6, 160, 2, 1), (3, 6, 240, 1, 1)],
            [(3, 6, 96, 3, 1)],
            [(3, 4, 160, 1, 1), (3, 6, 160, 3, 1), (3, 3, 80, 1, -2)],
        ),
        {"bbox": [4], "rpn": [5], "mask": [6]},
    ),
    "xirb16d_dsmask": (
        16,
        (
            [(3, 1, 16, 1, 1)],
            [(3, 6, 32, 2, 2)],
            [(3, 6, 48, 3, 2)],
            [(3, 6, 96, 4, 2), (3, 6, 128, 3, 1)],
            [(3, 4, 128, 1, 2), (3, 6, 128, 2, 1), (3, 6, 160, 1, 1)],
            [(3, 4, 128, 1, 2), (3, 6, 128, 2, 1), (3, 6, 128, 1, -2), (3, 3, 64, 1, -2)],
            [(3, 6, 128, 3, 1)],
        ),
        {"bbox": [4], "mask": [5], "rpn": [6]},
    ),
    "mobilenet_v2": (
        32,
        (*_DEFAULT_BODY, [(3, 6, 160, 3, 1), (3, 6, 320, 1, 1)]),
        {"bbox": [4]},
    ),
    "cham_v1a": (
        32,
        (
            [(3, 1, 24, 1, 1)],
            [(7, 4, 48, 2, 2)],
            [(3, 7, 64, 5, 2)],
            [(5, 12, 56, 7, 2), (3, 8, 88, 5, 1)],
            [(3, 7, 152, 4, 2), (3, 10, 104, 1, 1)],
            [(3, 8, 88, 3, 1)],
        ),
        {"bbox": [4], "rpn": [5]},
    ),
    "cham_v2": (
        32,
        (
            [(3, 1, 24, 1, 1)],
            [(5, 8, 32, 4, 2)],
            [(7, 5, 48, 6, 2)],
            [(5, 9, 56, 3, 2), (3, 6, 56, 6, 1)],
            [(3, 2, 160, 6, 2), (3, 6, 112, 1, 1)],
            [(3, 6, 56, 1, 1)],
        ),
        {"bbox": [4], "rpn": [5]},
    ),
}


class BlockOptions(NamedTuple):
    """Name and options of a block. Stride -2 upsamples."""

    name: str
    kernel: int
    expansion: int
    channels: int
    stride: int

    def output_side(self, side: int) -> int:
        """Return the output side for a square map of `side` cells."""
        up, down = max(-self.stride, 1), 1 if self.kernel == 1 else max(self.stride, 1)
        return -(-side * up // down)


@dataclass(frozen=True)
class Architecture:
    """Creates the layers of an architecture."""

    norm: Norm  # after each convolution that is not depthwise
    divisor: int  # widths are rounded to a multiple of this
    first: tuple[int, int]  # channels and stride of the 3x3 convolution before the stages
    stages: Sequence[Sequence[tuple[Any, ...]]]  # kernel, expansion, channels, stride of each block
    parts: Mapping[str, Sequence[int]]  # the stages of "backbone", "rpn", "bbox", "mask", "kpts"
    last: int = 0  # channels of the 1x1 convolution after the box head, before their factor

    def blocks(self, part: str) -> list[BlockOptions]:
        """Return the blocks of "backbone", "rpn", "bbox", "mask" or "kpts"."""
        if part not in self.parts:
            raise ValueError(
                f"the architecture of MODEL.FBNET has no stages for {part!r}, only for "
                f"{', '.join(self.parts)}: use another head"
            )
        return [
            BlockOptions(f"xif{stage}_{number}", *block)
            for stage in self.parts[part]
            for number, block in enumerate(self.stages[stage])
        ]

    def width(self, channels: float) -> int:
        """Round to the nearest multiple of `divisor`, at least one."""
        return max(math.floor(channels / self.divisor + 0.5), 1) * self.divisor

    def make_blocks(self, part: str, in_channels: int) -> tuple[nn.Sequential, int]:
        """Create the blocks of a part; return them and their output channels."""
        sequence = nn.Sequential()
        for block in self.blocks(part):
            layer = InvertedResidual(self, block, in_channels)
            sequence.add_module(block.name, layer)
            in_channels = layer.out_channels
        init_convs(sequence)
        return sequence, in_channels

    def conv(
        self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1,
        relu: bool = True, depthwise: bool = False,
    ) -> nn.Sequential:  # fmt: skip
        """Create a convolution without bias, norm (if not depthwise) and optional ReLU."""
        groups = in_channels if depthwise else 1
        options: Any = {"padding": kernel // 2, "groups": groups, "bias": False}
        layers = nn.Sequential()
        layers.add_module("conv", nn.Conv2d(in_channels, out_channels, kernel, stride, **options))
        if not depthwise:
            layers.add_module("bn", self.norm(out_channels))
        if relu:
            layers.add_module("relu", nn.ReLU(inplace=True))
        return layers


def build_architecture(cfg: CfgNode) -> Architecture:
    """Build the architecture of MODEL.FBNET."""
    node = cfg.MODEL.FBNET
    norm = build_norm(cfg, {"bn": "BN", "gn": "GN", "af": "FrozenBN"}[node.BN_TYPE])
    if node.ARCH_DEF:
        return Architecture(norm, node.WIDTH_DIVISOR, *_parse(node.ARCH_DEF))
    if node.ARCH not in _ARCHITECTURES:
        raise ValueError(
            f"MODEL.FBNET.ARCH is {node.ARCH!r}, but must be one of {', '.join(_ARCHITECTURES)}. "
            "Describe your own architecture in MODEL.FBNET.ARCH_DEF."
        )
    channels, groups, parts = _ARCHITECTURES[node.ARCH]
    stages, parts = [_expand(stage) for stage in groups], {"backbone": range(4), **parts}
    return Architecture(norm, node.WIDTH_DIVISOR, (channels, 2), stages, parts)


def _parse(text: str) -> tuple[Any, ...]:
    """Read the last four fields of an architecture from JSON in maskrcnn-benchmark's format."""
    try:
        content = json.loads(text)
        config, operators = content["block_cfg"], content["block_op_type"]
        stages = [
            [(_KERNELS[name], *block) for name, block in zip(names, _expand(rows), strict=True)]
            for rows, names in zip(config["stages"], operators, strict=True)
        ]
        every = range(len(stages))
        own = {part: [every[k] for k in config[part]] for part in _PARTS if config.get(part)}
        channels, stride = config["first"]
        return (channels, stride), stages, {"backbone": every[:-1], **own}, config["last"][0]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"MODEL.FBNET.ARCH_DEF, with the operators {', '.join(_KERNELS)}, is not JSON such as "
            '{"block_op_type": [["ir_k3"], ...], '
            '"block_cfg": {"first": [32, 2], "stages": [[[1, 16, 1, 1]], ...], "last": [0, 0.0], '
            f'"backbone": [0], "rpn": [1], "bbox": [2]}}}}: {error!r}'
        ) from error


def _expand(groups: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Repeat equal blocks (..., count, stride); only the first has the stride."""
    return [
        (*block, stride if k == 0 else 1) for *block, count, stride in groups for k in range(count)
    ]


class InvertedResidual(nn.Module):
    """1x1 convolution to a wider map, depthwise convolution, 1x1 back, and a possible shortcut."""

    def __init__(self, make: Architecture, block: BlockOptions, in_channels: int) -> None:
        super().__init__()
        self.out_channels = make.width(block.channels)
        width = make.width(in_channels * block.expansion)
        self.upsample, stride = max(-block.stride, 1), max(block.stride, 1)
        self.shortcut = block.stride == 1 and in_channels == self.out_channels
        self.pw = make.conv(in_channels, width)
        self.dw = nn.Sequential()
        if block.kernel > 1:
            self.dw = make.conv(width, width, block.kernel, stride, relu=False, depthwise=True)
        self.pwl = make.conv(width, self.out_channels, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [B, out_channels, H / stride, W / stride] from [B, C, H, W]."""
        out = self.pw(x)
        if self.upsample > 1:
            out = F.interpolate(out, scale_factor=float(self.upsample), mode="nearest")
        out = self.pwl(self.dw(out))
        return out + x if self.shortcut else out


class FBNetBackbone(nn.Module):
    """A 3x3 convolution and the stages of the part "backbone"."""

    def __init__(self, make: Architecture) -> None:
        super().__init__()
        channels, stride = make.first
        width = make.width(channels)
        self.first = make.conv(3, width, 3, stride)
        init_convs(self.first)
        self.stages, self.out_channels = make.make_blocks("backbone", width)
        self.stride = stride * math.prod(block.stride for block in make.blocks("backbone"))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Compute one map [B, out_channels, H / stride, W / stride]."""
        return [self.stages(self.first(x))]


@BACKBONES.register("FBNet")
def _build_fbnet(cfg: CfgNode) -> Backbone:
    body = FBNetBackbone(build_architecture(cfg))
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
    return FBNetRPNHead(*build_architecture(cfg).make_blocks("rpn", in_channels), anchors_per_cell)


class FBNetFeatureExtractor(Extractor):
    """Pools and applies the blocks of a part.

    A 1x1 convolution follows in the box head: MODEL.FBNET.DET_HEAD_LAST_SCALE times the width
    `last` of the architecture, or if negative, minus that times the width of the blocks.
    """

    def __init__(
        self, make: Architecture, part: str, pooler: Pooler, in_channels: int, last_scale: float
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.blocks, channels = make.make_blocks(part, in_channels)
        self.last: nn.Module = nn.Identity()
        if width := int(make.last * last_scale if last_scale > 0 else -last_scale * channels):
            width = make.width(width)
            self.last = make.conv(channels, width)
            init_convs(self.last)
            channels = width
        self.out_channels, self.out_resolution = channels, pooler.resolution
        for block in make.blocks(part):
            self.out_resolution = block.output_side(self.out_resolution)

    def embed(self, pooled: Tensor) -> Tensor:
        """Compute [R, out_channels, S', S'] from [R, C, S, S]."""
        return self.last(self.blocks(pooled))


def _build_extractor(cfg: CfgNode, backbone: Backbone, head: str, part: str) -> Extractor:
    """Build the extractor of MODEL.<head> from a part of the architecture."""
    pooler = build_pooler(cfg, head, backbone)
    last_scale = cfg.MODEL.FBNET.DET_HEAD_LAST_SCALE if part == "bbox" else 0.0
    make, channels = build_architecture(cfg), backbone.out_channels
    return FBNetFeatureExtractor(make, part, pooler, channels, last_scale)


for _registry, _name, _head, _part in (
    (BOX_EXTRACTORS, "FBNet.roi_head", "ROI_BOX_HEAD", "bbox"),
    (MASK_EXTRACTORS, "FBNet.roi_head_mask", "ROI_MASK_HEAD", "mask"),
    (KEYPOINT_EXTRACTORS, "FBNet.roi_head_keypoints", "ROI_KEYPOINT_HEAD", "kpts"),
):
    _registry.register(_name)(partial(_build_extractor, head=_head, part=_part))
