"""Feature pyramid network (Lin et al., https://arxiv.org/abs/1612.03144)."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detlite.modeling.layers.conv_block import conv_block, init_xavier
from detlite.modeling.layers.norm import Norm


class P6P7(nn.Module):
    """Two levels above P5 by 3x3 convolutions of stride 2 (RetinaNet,
    https://arxiv.org/abs/1708.02002).

    `from_c5` computes P6 from the coarsest map of the backbone, `relu` is applied before P7.
    """

    def __init__(
        self, in_channels: int, out_channels: int, from_c5: bool, relu: bool = True
    ) -> None:
        super().__init__()
        self.from_c5, self.relu = from_c5, relu
        self.p6 = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(out_channels, out_channels, 3, stride=2, padding=1)
        for layer in (self.p6, self.p7):
            init_xavier(layer)

    def forward(self, c5: Tensor, p5: Tensor) -> list[Tensor]:
        """Compute P6 and P7 from C5 [B, C_5, H, W] and P5 [B, C, H, W]."""
        p6 = self.p6(c5 if self.from_c5 else p5)
        return [p6, self.p7(F.relu(p6) if self.relu else p6)]


class FPN(nn.Module):
    """Top-down pathway over the maps of a backbone, and coarser levels on top.

    Args:
        in_channels: channels of the backbone's maps, finest first.
        norm, relu: after each convolution.
        top: computes further levels from the coarsest map and level; None: subsample the coarsest
            level once, for the largest anchors.
    """

    def __init__(
        self,
        in_channels: Iterable[int],
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
            conv_block(out_channels, out_channels, 3, norm=norm, relu=relu) for _ in self.lateral
        )
        self.top = top

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Compute levels [B, C, H_k, W_k] and coarser ones from maps [B, C_k, H_k, W_k]."""
        top_down = self.lateral[-1](maps[-1])
        levels = [self.output[-1](top_down)]
        for index in range(len(maps) - 2, -1, -1):
            above = F.interpolate(top_down, size=maps[index].shape[-2:], mode="nearest")
            top_down = self.lateral[index](maps[index]) + above
            levels.insert(0, self.output[index](top_down))
        if self.top is None:
            return [*levels, subsample(levels[-1])]
        return [*levels, *self.top(maps[-1], levels[-1])]


def subsample(level: Tensor) -> Tensor:
    """Select the even rows and columns of a map [B, C, H, W]."""
    if not torch.compiler.is_exporting():
        return F.max_pool2d(level, 1, 2)
    # torch 2.11 exports a pooling, or a strided slice, only for odd sides or only for even ones.
    rows, columns = (torch.arange(0, side, 2, device=level.device) for side in level.shape[-2:])
    return level.index_select(2, rows).index_select(3, columns)
