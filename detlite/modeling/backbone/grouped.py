"""Convolutions of groups of few channels, such as one, whose gradients are quick in bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class GroupedConv2d(nn.Conv2d):
    """`nn.Conv2d`, whose gradients are computed in float32 where that takes less time.

    oneDNN, which torch has convolve bfloat16 on a CPU, is slow with gradients of groups of few
    channels: up to four times as slow as in float32 (`docs/fine_tuning.md`).

    Args:
        conv: whose parameters it shares; it pads by zeros. Where it names how ("same"), all stays
            as torch has it.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(**geometry(conv))
        self.weight, self.bias = conv.weight, conv.bias
        self._float_gradients = slow_in_bfloat16(conv) and not isinstance(conv.padding, str)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        on_cpu = x.device.type == "cpu"
        if not self._float_gradients or not on_cpu or not torch.is_grad_enabled():
            return super()._conv_forward(x, weight, bias)
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        if dtype != torch.bfloat16:
            return super()._conv_forward(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            how = self.stride, self.padding, self.dilation, self.groups
            found: Tensor = _FloatGradients.apply(x.to(dtype), weight, bias, how)
            return found

    def plain(self) -> nn.Conv2d:
        """An `nn.Conv2d` with the same parameters."""
        conv = nn.Conv2d(**geometry(self))
        conv.weight, conv.bias = self.weight, self.bias
        return conv


class _FloatGradients(torch.autograd.Function):
    """A convolution of a bfloat16 map [B, C, H, W] with weights and bias of any type."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.biases = how, None if bias is None else list(bias.shape)
        bias = None if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        to_x, to_weight, to_bias = torch.ops.aten.convolution_backward(
            gradient.float(), x.float(), weight.float(), ctx.biases, stride, padding, dilation,
            False, [0, 0], groups, ctx.needs_input_grad[:3],
        )  # fmt: skip
        return None if to_x is None else to_x.to(x.dtype), to_weight, to_bias, None


def slow_in_bfloat16(conv: nn.Conv2d) -> bool:
    """Whether gradients of a convolution take longer in bfloat16 than in float32, on a CPU."""
    own = conv.in_channels // conv.groups
    quick = own == 1 and conv.kernel_size == (3, 3) and conv.stride == (1, 1)
    return conv.groups > 1 and own < 16 and not quick


def quicken_gradients(body: nn.Module) -> None:
    """Makes GroupedConv2d of the convolutions for which that pays."""
    for path, conv in list(body.named_modules()):
        plain = type(conv) is nn.Conv2d and conv.padding_mode == "zeros"
        if plain and slow_in_bfloat16(conv) and not isinstance(conv.padding, str):
            body.set_submodule(path, GroupedConv2d(conv))


def geometry(conv: nn.Conv2d) -> dict[str, Any]:
    """Arguments of a convolution of the same shape, which has no parameters yet."""
    names = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    )  # fmt: skip
    own = {name: getattr(conv, name) for name in names}
    return {**own, "bias": conv.bias is not None, "device": "meta"}
