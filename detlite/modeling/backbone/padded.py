"""Zeros around maps: up to a multiple, and of convolutions that have more on one side."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


def pad_to(x: Tensor, multiple: int) -> Tensor:
    """[B, C, H, W] with zeros at the right and at the bottom, up to the next multiples."""
    right, down = (parts(side, multiple) * multiple - side for side in (x.shape[3], x.shape[2]))
    return F.pad(x, (0, right, 0, down))


def parts(side: int, size: int) -> int:
    """How many parts of a size a side begins.

    Exporters know no remainder of sizes, and ONNX and OpenVINO round a quotient below 0 up: all
    numbers are positive here.
    """
    return (side + size - 1) // size


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
