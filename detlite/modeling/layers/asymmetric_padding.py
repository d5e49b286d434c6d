"""Zero padding of maps, and convolutions with a different padding on each side."""

from torch import Tensor, nn
from torch.nn import functional as F

from .conv import conv_options


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad [B, C, H, W] with zeros at the right and bottom to multiples of `multiple`."""
    right, bottom = (
        ceil_div(side, multiple) * multiple - side for side in (x.shape[3], x.shape[2])
    )
    return F.pad(x, (0, right, 0, bottom))


def ceil_div(side: int, size: int) -> int:
    """Return side / size, rounded up, for sides that may be symbols of an exported graph.

    Exporters do not support the remainder of a size, and ONNX and OpenVINO round a negative
    quotient up, so all numbers here are positive.
    """
    return (side + size - 1) // size


class PaddedConv2d(nn.Conv2d):
    """Convolution like `conv`, with shared parameters, that pads maps by `margins` of zeros: at the
    left, right, top and bottom."""

    def __init__(self, conv: nn.Conv2d, margins: tuple[int, int, int, int]) -> None:
        super().__init__(**conv_options(conv))
        self.weight, self.bias = conv.weight, conv.bias
        self.margins = margins

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, C, H, W]."""
        return super().forward(F.pad(x, self.margins))
