"""Convolutions whose gradients are computed on a CPU in the way that takes the least time there.

torch has oneDNN convolve on a CPU, and two of its gradients are slow: of groups of few channels in
bfloat16, and of weights in float32 where a processor has AVX2 alone. `docs/fine_tuning.md` and
`benchmarks/convolution_gradients.py` have times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CAPABILITY = torch.backends.cpu.get_cpu_capability()
BLOCK = 2**20  # floats that weight_gradient lays side by side at a time: what fits into a cache


class QuickConv2d(nn.Conv2d):
    """`nn.Conv2d`, whose gradients are computed in another way where that takes less time.

    Args:
        conv: whose parameters it shares; it pads by zeros. Where it names how ("same"), all stays
            as torch has it.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(**geometry(conv))
        self.weight, self.bias = conv.weight, conv.bias
        named = isinstance(conv.padding, str)
        self._in_float32 = not named and slow_in_bfloat16(conv)
        self._by_products = not named and slow_in_float32(conv)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        way = self._way(x, weight, dtype)
        if way is None:
            return super()._conv_forward(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            how = self.stride, self.padding, self.dilation, self.groups
            found: Tensor = way.apply(x.to(dtype), weight, bias, how)
            return found

    def _way(
        self, x: Tensor, weight: Tensor, dtype: torch.dtype
    ) -> type[_FloatGradients | _WeightProducts] | None:
        """How its gradients are computed, if not by torch."""
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return None
        if dtype == torch.bfloat16:
            return _FloatGradients if self._in_float32 else None
        quick = self._by_products and weight.requires_grad and dtype == weight.dtype
        last = x.is_contiguous(memory_format=torch.channels_last)
        return _WeightProducts if quick and last and dtype == torch.float32 else None

    def plain(self) -> nn.Conv2d:
        """An `nn.Conv2d` with the same parameters."""
        conv = nn.Conv2d(**geometry(self))
        conv.weight, conv.bias = self.weight, self.bias
        return conv


class _Convolution(torch.autograd.Function):
    """A convolution of a map [B, C, H, W] with weights and bias, in the map's type."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.biases = how, None if bias is None else list(bias.shape)
        bias = None if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, *how)


class _FloatGradients(_Convolution):
    """Its gradients are computed in float32."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = _gradients(
            ctx, gradient.float(), x.float(), weight.float(), ctx.needs_input_grad[:3]
        )
        return None if to_x is None else to_x.to(x.dtype), to_weight, to_bias, None


class _WeightProducts(_Convolution):
    """The gradient of its weights is a sum of products of matrices."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        _, padding, dilation, _ = ctx.how
        # oneDNN computes the gradient of the weights for that of the bias as well, so not there
        to_x = _gradients(ctx, gradient, x, weight, (ctx.needs_input_grad[0], False, False))[0]
        to_weight = weight_gradient(gradient, x, weight.shape[2:], padding, dilation)
        to_bias = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return to_x, to_weight, to_bias, None


def _gradients(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """torch's, of map, weights and bias where they are needed."""
    stride, padding, dilation, groups = ctx.how
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, x, weight, ctx.biases, stride, padding, dilation, False, [0, 0], groups, needed
    )
    return found


def weight_gradient(
    gradient: Tensor,
    x: Tensor,
    kernel: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Of a convolution of stride 1 in one group, by products of matrices.

    A row of the kernel meets each pixel with as many of its neighbours side by side; these are laid
    out once for all rows of the kernel, for some rows of maps at a time so that they stay in cache.

    Args:
        gradient: [B, D, H', W'] of what the convolution gave.
        x: [B, C, H, W] that it was given; both are read quickest in channels-last.
        kernel: its height and width; `padding` and `dilation` as `torch.nn.Conv2d` has them.

    Returns:
        [D, C, *kernel], in float32 summed in another order than torch does.
    """
    _, outputs, height, width = gradient.shape
    channels, (down, across) = x.shape[1], kernel
    total = gradient.new_zeros(down, outputs, across * channels)
    row = width * across * channels
    rows = min(max(BLOCK // row, 1), height)
    images = max(BLOCK // (row * rows), 1)
    by_row = (maps.permute(2, 0, 3, 1).split(images, 1) for maps in (gradient, x))
    for gradients, maps in zip(*by_row, strict=True):
        for top in range(0, height, rows):
            strip = gradients[top : top + rows]
            read = len(strip) + (down - 1) * dilation[0]
            beside = _beside(maps, (top - padding[0], read), width, across, padding[1], dilation[1])
            by_output = strip.reshape(-1, outputs).t()
            for i in range(down):
                under = beside[i * dilation[0] :][: len(strip)]
                total[i] += by_output @ under.reshape(-1, across * channels)
    return total.view(down, outputs, across, channels).permute(1, 3, 0, 2)


def _beside(
    maps: Tensor, rows: tuple[int, int], width: int, across: int, padding: int, dilation: int
) -> Tensor:
    """[H, B, W, C] -> [rows, B, W', across, C]: the pixels that a row of the kernel meets.

    `rows` are the first, which may lie above the map, and how many; outside of it are zeros.
    """
    top, height = rows
    beside = maps.new_zeros(height, maps.shape[1], width, across, maps.shape[3])
    first, last = max(-top, 0), min(height, len(maps) - top)
    for j in range(across):
        shift = j * dilation - padding
        left, right = max(-shift, 0), min(width, maps.shape[2] - shift)
        if first < last and left < right:
            beside[first:last, :, left:right, j] = maps[
                top + first : top + last, :, left + shift : right + shift
            ]
    return beside


def slow_in_bfloat16(conv: nn.Conv2d) -> bool:
    """Whether gradients of a convolution take longer in bfloat16 than in float32, on a CPU."""
    own = conv.in_channels // conv.groups
    quick = own == 1 and conv.kernel_size == (3, 3) and conv.stride == (1, 1)
    return conv.groups > 1 and own < 16 and not quick


def slow_in_float32(conv: nn.Conv2d) -> bool:
    """Whether the gradient of its weights takes oneDNN longer than `weight_gradient`, here."""
    wide = min(conv.in_channels, conv.out_channels) >= 32
    one = conv.groups == 1 and conv.stride == (1, 1) and conv.kernel_size != (1, 1)
    return CAPABILITY == "AVX2" and wide and one


def quicken_gradients(model: nn.Module) -> None:
    """Makes QuickConv2d of the convolutions for which that pays."""
    for path, conv in list(model.named_modules()):
        plain = type(conv) is nn.Conv2d and conv.padding_mode == "zeros"
        if not plain or isinstance(conv.padding, str):
            continue
        if slow_in_bfloat16(conv) or slow_in_float32(conv):
            model.set_submodule(path, QuickConv2d(conv))


def geometry(conv: nn.Conv2d) -> dict[str, Any]:
    """Arguments of a convolution of the same shape, which has no parameters yet."""
    names = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    )  # fmt: skip
    own = {name: getattr(conv, name) for name in names}
    return {**own, "bias": conv.bias is not None, "device": "meta"}
