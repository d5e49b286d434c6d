"""What necks and heads share: small layers, their first weights, and their precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .norm import Norm

# What is called as `conv_block` is.
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
    """A same-size convolution, then the optional norm and ReLU.

    `bias`: whether the convolution has one; None: where no norm follows, which would replace it.
    """
    conv = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        padding=dilation * (kernel_size // 2),
        dilation=dilation,
        bias=norm is None if bias is None else bias,
    )
    if relu:
        init_he(conv)
    else:
        init_xavier(conv)
    layers: list[nn.Module] = [conv]
    if norm is not None:
        layers.append(norm(out_channels))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


Layer = nn.Linear | nn.Conv2d | nn.ConvTranspose2d


def init_normal(layer: Layer, std: float) -> None:
    """Gaussian weights, zero bias: how prediction layers start."""
    nn.init.normal_(layer.weight, std=std)
    _zero_bias(layer)


def init_he(layer: Layer) -> None:
    """Gaussian weights of variance 2 / fan-out, zero bias: for layers that a ReLU follows."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    _zero_bias(layer)


def init_xavier(layer: Layer) -> None:
    """Uniform weights of variance 1 / fan-in (what Caffe2 calls Xavier), zero bias."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    _zero_bias(layer)


def _zero_bias(layer: Layer) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def at_least_float32(x: Tensor) -> Tensor:
    """Half types as float32, as neither coordinates nor scores fit them; float64 as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
