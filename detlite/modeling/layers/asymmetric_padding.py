"""Zeros around maps: up to a multiple, and of convolutions that have more on one side."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .conv import QuickConv2d


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


class PaddedConv2d(QuickConv2d):
    """A convolution, plain but for a border of zeros that it puts around its maps.

    Args:
        conv: whose parameters it shares.
        margins: pixels at the left, right, top and bottom.
    """

    def __init__(self, conv: nn.Conv2d, margins: tuple[int, int, int, int]) -> None:
        super().__init__(conv)
        self.margins = margins

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, D, H', W']."""
        return super().forward(F.pad(x, self.margins))
