"""Convolutions with a margin of zeros that is not the same on all sides."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class PaddedConv2d(nn.Conv2d):
    """A convolution, plain but for a border of zeros that it puts around its maps.

    Args:
        conv: whose parameters it shares.
        margins: pixels at the left, right, top and bottom.
    """

    def __init__(self, conv: nn.Conv2d, margins: tuple[int, int, int, int]) -> None:
        super().__init__(**geometry(conv))
        self.weight, self.bias = conv.weight, conv.bias
        self.margins = margins

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, D, H', W']."""
        return super().forward(F.pad(x, self.margins))

    def plain(self) -> nn.Conv2d:
        """What is done of maps with the border, with the same parameters."""
        conv = nn.Conv2d(**geometry(self))
        conv.weight, conv.bias = self.weight, self.bias
        return conv


def geometry(conv: nn.Conv2d) -> dict[str, Any]:
    """Arguments of a convolution of the same shape, which has no parameters yet."""
    names = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    )  # fmt: skip
    own = {name: getattr(conv, name) for name in names}
    return {**own, "bias": conv.bias is not None, "device": "meta"}
