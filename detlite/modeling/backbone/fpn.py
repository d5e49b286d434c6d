"""Feature pyramid network (Lin et al., https://arxiv.org/abs/1612.03144)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.layers.basic import conv_block, init_xavier
from detlite.modeling.layers.norm import Norm


class P6P7(nn.Module):
    """Two levels above P5 by 3x3s of stride 2 (RetinaNet, https://arxiv.org/abs/1708.02002).

    P6 is made from P5 or, if `from_c5`, from the body's coarsest map; P7 from P6, behind a ReLU
    unless `relu` is False.
    """

    def __init__(
        self, in_channels: int, out_channels: int, from_c5: bool, relu: bool = True
    ) -> None:
        super().__init__()
        self.from_c5 = from_c5
        self.relu = relu
        self.p6 = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(out_channels, out_channels, 3, stride=2, padding=1)
        for layer in (self.p6, self.p7):
            init_xavier(layer)

    def forward(self, c5: Tensor, p5: Tensor) -> list[Tensor]:
        """C5 [B, C_5, H, W] and P5 [B, C, H, W] -> P6 and P7 of a half and a quarter."""
        p6 = self.p6(c5 if self.from_c5 else p5)
        return [p6, self.p7(F.relu(p6) if self.relu else p6)]


class FPN(nn.Module):
    """Top-down pathway over the maps of a body, and coarser levels on top.

    Args:
        in_channels: channels of the body's maps, finest first.
        out_channels: channels of every level.
        norm, relu: after each convolution.
        top: gives further levels from the coarsest map and the coarsest level; None: one more by
            subsampling, for the largest anchors alone.
    """

    def __init__(
        self,
        in_channels: list[int],
        out_channels: int,
        norm: Norm | None = None,
        relu: bool = False,
        top: P6P7 | None = None,
    ) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(
            conv_block(channels, out_channels, 1, norm=norm, relu=relu) for channels in in_channels
        )
        self.output = nn.ModuleList(
            conv_block(out_channels, out_channels, 3, norm=norm, relu=relu) for _ in in_channels
        )
        self.top = top

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Body maps [B, C_k, H_k, W_k] -> levels [B, C, H_k, W_k] and coarser ones."""
        top_down = self.lateral[-1](maps[-1])
        levels = [self.output[-1](top_down)]
        for index in range(len(maps) - 2, -1, -1):
            above = F.interpolate(top_down, size=maps[index].shape[-2:], mode="nearest")
            top_down = self.lateral[index](maps[index]) + above
            levels.insert(0, self.output[index](top_down))
        if self.top is None:
            return [*levels, every_second(levels[-1])]
        return [*levels, *self.top(maps[-1], levels[-1])]


def every_second(level: Tensor) -> Tensor:
    """The even rows and columns of a map [B, C, H, W]."""
    if not torch.compiler.is_exporting():
        return F.max_pool2d(level, 1, 2)
    # Torch 2.11 exports a pooling, or a strided slice, for odd sides or for even ones alone.
    rows, columns = (torch.arange(0, side, 2, device=level.device) for side in level.shape[-2:])
    return level.index_select(2, rows).index_select(3, columns)
