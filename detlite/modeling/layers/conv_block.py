"""Convolution blocks of necks and heads: convolution, norm and ReLU."""

from collections.abc import Callable

from torch import nn

from .norm import Norm
from .weight_init import init_he, init_xavier

# A function with the signature of `conv_block`.
Block = Callable[..., nn.Module]


def conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm | None = None,
    relu: bool = False,
    dilation: int = 1,
    bias: bool | None = None,
) -> nn.Sequential:
    """Create a convolution that keeps the size of the map, an optional norm and an optional ReLU.

    With `bias` None, the convolution has a bias if there is no norm.
    """
    padding = dilation * (kernel_size // 2)
    bias = norm is None if bias is None else bias
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=bias
    )
    (init_he if relu else init_xavier)(conv)
    return _with_norm_and_relu([conv], out_channels, norm, relu)


def separable_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm | None = None,
    relu: bool = False,
    dilation: int = 1,
) -> nn.Sequential:
    """Create a depthwise separable `conv_block`, with nothing between its two convolutions.

    It takes 1/C + 1/k^2 of the multiplications of a k x k convolution to C channels (MobileNets,
    https://arxiv.org/abs/1704.04861).
    """
    depthwise = nn.Conv2d(
        in_channels,
        in_channels,
        kernel_size,
        padding=dilation * (kernel_size // 2),
        dilation=dilation,
        groups=in_channels,
        bias=False,  # the 1x1 convolution has one
    )
    pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=norm is None)
    init_xavier(depthwise)  # no ReLU follows it
    (init_he if relu else init_xavier)(pointwise)
    return _with_norm_and_relu([depthwise, pointwise], out_channels, norm, relu)


def _with_norm_and_relu(
    layers: list[nn.Module], channels: int, norm: Norm | None, relu: bool
) -> nn.Sequential:
    if norm is not None:
        layers.append(norm(channels))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
