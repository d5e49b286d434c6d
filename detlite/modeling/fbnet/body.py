"""FBNet and ChamNet bodies (https://arxiv.org/abs/1812.03443, https://arxiv.org/abs/1812.08934).

Rows of blocks in numbered stages; an architecture says which stages are the body and which belong
to the heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from yacs.config import CfgNode

from ..backbone import BACKBONES, Backbone
from ..backbone.resnet import init_convs
from ..norm import Norm, build_norm
from .architectures import ARCHITECTURES, Architecture, parse_architecture
from .blocks import BlockSpec, FBNetSpec, conv_norm_relu, make_blocks


def part_blocks(
    architecture: Architecture, part: str, numbers: Sequence[int] = ()
) -> list[BlockSpec]:
    """The blocks of a part; of each of its stages those of `numbers`, or all.

    Raises:
        ValueError: a part that the architecture does not have.
    """
    if part not in architecture.parts:
        raise ValueError(
            f"the architecture of MODEL.FBNET has no stages for {part!r}, only for "
            f"{', '.join(architecture.parts)}: use another head"
        )
    blocks = []
    for stage in architecture.parts[part]:
        rows = architecture.stages[stage]
        own = [
            (operator, expansion, channels, stride if k == 0 else 1)
            for operator, expansion, channels, count, stride in rows
            for k in range(count)
        ]
        blocks += [BlockSpec(stage, number, *block) for number, block in enumerate(own)]
    return [block for block in blocks if not numbers or block.number in numbers]


def fbnet_spec(cfg: CfgNode) -> tuple[FBNetSpec, Architecture]:
    """What MODEL.FBNET says.

    Raises:
        ValueError: an unknown architecture, or a definition that cannot be read.
    """
    node = cfg.MODEL.FBNET
    if node.ARCH_DEF:
        architecture = parse_architecture(node.ARCH_DEF)
    elif node.ARCH in ARCHITECTURES:
        architecture = ARCHITECTURES[node.ARCH]
    else:
        raise ValueError(
            f"MODEL.FBNET.ARCH is {node.ARCH!r}; known: {', '.join(ARCHITECTURES)}. One of your "
            "own is given in MODEL.FBNET.ARCH_DEF"
        )
    spec = FBNetSpec(
        norm=fbnet_norm(cfg, node.BN_TYPE),
        scale=node.SCALE_FACTOR,
        divisor=node.WIDTH_DIVISOR,
        no_depthwise_norm=node.DW_CONV_SKIP_BN,
        no_depthwise_relu=node.DW_CONV_SKIP_RELU,
    )
    return spec, architecture


def fbnet_norm(cfg: CfgNode, kind: str) -> Norm:
    """The norm that BN_TYPE calls bn, gn or af (frozen batch norm)."""
    return build_norm(cfg, {"bn": "BN", "gn": "GN", "af": "FrozenBN"}[kind])


class FBNetBody(nn.Module):
    """A 3x3, and the stages of the part "backbone"."""

    def __init__(self, spec: FBNetSpec, architecture: Architecture) -> None:
        super().__init__()
        channels, stride = architecture.first
        width = spec.width(channels)
        self.first = conv_norm_relu(3, width, 3, stride, norm=spec.norm, relu=True)
        init_convs(self.first)
        blocks = part_blocks(architecture, "backbone")
        self.stages, self.out_channels = make_blocks(spec, blocks, width)
        self.stride = stride * math.prod(block.stride for block in blocks)

    def forward(self, x: Tensor) -> list[Tensor]:
        """[B, 3, H, W] -> one [B, out_channels, H / stride, W / stride]."""
        return [self.stages(self.first(x))]


@BACKBONES.register("FBNet")
def _build_fbnet(cfg: CfgNode) -> Backbone:
    body = FBNetBody(*fbnet_spec(cfg))
    return Backbone(body, nn.Identity(), body.out_channels, strides=(body.stride,), pooled=1)
