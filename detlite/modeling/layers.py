"""Small layers shared by the necks and heads."""

from __future__ import annotations

from torch import nn

from .norm import Norm


def conv_block(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    norm: Norm | None = None,
    relu: bool = False,
    dilation: int = 1,
) -> nn.Sequential:
    """A same-size convolution, then the optional norm (which replaces its bias) and ReLU."""
    conv = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        padding=dilation * (kernel_size // 2),
        dilation=dilation,
        bias=norm is None,
    )
    if relu:
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    else:
        nn.init.kaiming_uniform_(conv.weight, a=1)  # variance 1 / fan_in ("Xavier" of Caffe2)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    layers: list[nn.Module] = [conv]
    if norm is not None:
        layers.append(norm(out_channels))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def init_normal(layer: nn.Linear | nn.Conv2d, std: float) -> None:
    """Gaussian weights, zero bias: how prediction layers start."""
    nn.init.normal_(layer.weight, std=std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
