"""Feature pyramid network (Lin et al., https://arxiv.org/abs/1612.03144)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import conv_block
from ..norm import Norm


class FPN(nn.Module):
    """Top-down pathway over the maps of a body, and a coarsest level by subsampling.

    Args:
        in_channels: channels of the body's maps, finest first.
        out_channels: channels of every level.
        norm: optional norm after each convolution.
        relu: ReLU after each convolution.
    """

    def __init__(
        self,
        in_channels: list[int],
        out_channels: int,
        norm: Norm | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(
            conv_block(channels, out_channels, 1, norm=norm, relu=relu) for channels in in_channels
        )
        self.output = nn.ModuleList(
            conv_block(out_channels, out_channels, 3, norm=norm, relu=relu) for _ in in_channels
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Body maps [B, C_k, H_k, W_k] -> levels [B, C, H_k, W_k] and one of half the coarsest."""
        top_down = self.lateral[-1](maps[-1])
        levels = [self.output[-1](top_down)]
        for index in range(len(maps) - 2, -1, -1):
            lateral = self.lateral[index](maps[index])
            top_down = lateral + F.interpolate(top_down, size=lateral.shape[-2:], mode="nearest")
            levels.insert(0, self.output[index](top_down))
        # P6 is for the RPN's largest anchors alone; every second pixel of P5 is enough for it.
        levels.append(levels[-1][:, :, ::2, ::2])
        return levels
