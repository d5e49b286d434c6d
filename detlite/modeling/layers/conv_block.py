"""Convolution blocks of necks and heads (convolution, norm and ReLU), and initial weights."""

from torch import nn

from .norm import Norm

Layer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


def init_normal(layer: Layer, std: float) -> None:
    """Draw Gaussian weights, zero the bias. For prediction layers."""
    nn.init.normal_(layer.weight, std=std)
    _zero_bias(layer)


def init_he(layer: Layer) -> None:
    """Draw Gaussian weights of variance 2 / fan-out, zero the bias. For layers before a ReLU."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    _zero_bias(layer)


def init_xavier(layer: Layer) -> None:
    """Draw uniform weights of variance 1 / fan-in (Caffe2's "Xavier"), zero the bias."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    _zero_bias(layer)


def _zero_bias(layer: Layer) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm | None = None,
    relu: bool = False,
    dilation: int = 1,
    bias: bool | None = None,
    separable: bool = False,
) -> nn.Sequential:
    """Create a convolution that keeps the size of the map, an optional norm and an optional ReLU.

    With `bias` None, the convolution has a bias if there is no norm.

    `separable` convolutions are a depthwise and a 1x1 convolution with nothing in between. They
    need 1/C + 1/k^2 of the multiplications of a k x k convolution to C channels (MobileNets,
    https://arxiv.org/abs/1704.04861).
    """
    bias = norm is None if bias is None else bias
    padding, convs = dilation * (kernel_size // 2), []
    if separable:
        depthwise = nn.Conv2d(
            in_channels, in_channels, kernel_size,
            padding=padding, dilation=dilation, groups=in_channels, bias=False,
        )  # fmt: skip
        convs.append(depthwise)
        kernel_size, padding, dilation = 1, 0, 1
    convs.append(
        nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=bias
        )
    )
    if separable:
        init_xavier(convs[0])  # no ReLU follows it
    (init_he if relu else init_xavier)(convs[-1])
    block = nn.Sequential(*convs)
    if norm is not None:
        block.append(norm(out_channels))
    if relu:
        block.append(nn.ReLU(inplace=True))
    return block
