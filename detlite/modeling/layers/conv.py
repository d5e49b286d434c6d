"""Convolutions with faster gradients on CPUs.

torch computes convolutions on a CPU by oneDNN, and two of its gradients are slow: those of groups
of few channels in bfloat16, and those of the weights in float32 on processors with AVX2 only.
`docs/fine_tuning.md` and `benchmarks/models/convolution_gradients.py` have times.

Shapes: B images, C input and D output channels, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CAPABILITY = torch.backends.cpu.get_cpu_capability()
CACHE_BLOCK = 2**20  # floats that weight_gradient copies at a time, so that they stay in the cache


class CPUConv2d(nn.Conv2d):
    """`nn.Conv2d` that computes its gradients by a faster method where there is one.

    Args:
        conv: shares its parameters; may be a `PaddedConv2d`. Its padding is by zeros.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(**conv_options(conv))
        self.weight, self.bias = conv.weight, conv.bias
        self.margins: tuple[int, int, int, int] | None = getattr(conv, "margins", None)
        numbers = not isinstance(conv.padding, str)  # "same" stays torch's
        self._use_float32 = numbers and slow_in_bfloat16(conv)
        self._use_products = numbers and slow_in_float32(conv)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, C, H, W]."""
        return super().forward(x if self.margins is None else F.pad(x, self.margins))

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        function = self._function(x, weight, dtype)
        if function is None:
            return super()._conv_forward(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            options = self.stride, self.padding, self.dilation, self.groups
            result: Tensor = function.apply(x.to(dtype), weight, bias, options)
            return result

    def _function(
        self, x: Tensor, weight: Tensor, dtype: torch.dtype
    ) -> type[_Float32Gradients | _WeightProducts] | None:
        """Choose how to compute the gradients; None: by torch."""
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return None
        if dtype == torch.bfloat16:
            return _Float32Gradients if self._use_float32 else None
        products = self._use_products and weight.requires_grad and dtype == weight.dtype
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return _WeightProducts if products and channels_last and dtype == torch.float32 else None


class StridedPointwiseConv2d(nn.Conv2d):
    """1x1 convolution with a stride, which drops pixels before it computes gradients.

    torch 2.14 crashes in the gradient of such a convolution of 2 to 15 channels on CPUs, if maps
    are channels-last.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(**conv_options(conv))
        self.weight, self.bias = conv.weight, conv.bias

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, C, H, W]."""
        if not torch.is_grad_enabled():
            return super().forward(x)
        rows, columns = self.stride
        return F.conv2d(x[:, :, ::rows, ::columns], self.weight, self.bias)


def replace_crashing_convs(model: nn.Module) -> None:
    """Replace the convolutions inside `model` that need `StridedPointwiseConv2d`."""
    for path, conv in list(model.named_modules()):
        if type(conv) is not nn.Conv2d or conv.groups > 1 or not 1 < conv.in_channels < 16:
            continue
        if conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.padding == (0, 0):
            model.set_submodule(path, StridedPointwiseConv2d(conv))


class _Convolution(torch.autograd.Function):
    """Convolve a map [B, C, H, W] by weights and a bias, in the type of the map."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.bias_shape = options, None if bias is None else list(bias.shape)
        bias = None if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, *options)


class _Float32Gradients(_Convolution):
    """Compute the gradients in float32."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        x_grad, weight_grad, bias_grad = _torch_gradients(
            ctx, gradient.float(), x.float(), weight.float(), ctx.needs_input_grad[:3]
        )
        return None if x_grad is None else x_grad.to(x.dtype), weight_grad, bias_grad, None


class _WeightProducts(_Convolution):
    """Compute the gradient of the weights by `weight_gradient`."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        _, padding, dilation, _ = ctx.options
        # oneDNN would compute the gradient of the weights together with that of the bias.
        mask = (ctx.needs_input_grad[0], False, False)
        x_grad = _torch_gradients(ctx, gradient, x, weight, mask)[0]
        weight_grad = weight_gradient(gradient, x, weight.shape[2:], padding, dilation)
        bias_grad = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return x_grad, weight_grad, bias_grad, None


def _torch_gradients(
    ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Compute torch's gradients of the map, the weights and the bias, as far as `mask` has them."""
    stride, padding, dilation, groups = ctx.options
    gradients: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, x, weight, ctx.bias_shape, stride, padding, dilation, False, [0, 0], groups, mask
    )
    return gradients


def weight_gradient(
    gradient: Tensor,
    x: Tensor,
    kernel: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Compute the weight gradient of a stride-1 convolution as a sum of matrix products.

    For each pixel, the neighbors that one kernel row reaches are copied side by side. All kernel
    rows use the copy, which is made for a few rows of the maps at a time so that it stays in the
    cache.

    `gradient` [B, D, H', W'] of the output and the input `x` [B, C, H, W] are read fastest in
    channels-last format. The result [D, C, *kernel] is summed in another order than torch's.
    """
    _, outputs, height, width = gradient.shape
    channels, (kernel_height, kernel_width) = x.shape[1], kernel
    total = gradient.new_zeros(kernel_height, outputs, kernel_width * channels)
    row_size = width * kernel_width * channels
    rows = min(max(CACHE_BLOCK // row_size, 1), height)
    images = max(CACHE_BLOCK // (row_size * rows), 1)
    by_row = (maps.permute(2, 0, 3, 1).split(images, 1) for maps in (gradient, x))  # [H, b, W, C]
    for gradients, maps in zip(*by_row, strict=True):
        for top in range(0, height, rows):
            strip = gradients[top : top + rows]
            needed = len(strip) + (kernel_height - 1) * dilation[0]
            neighbors = _row_neighbors(
                maps, (top - padding[0], needed), width, kernel_width, padding[1], dilation[1]
            )
            by_output = strip.reshape(-1, outputs).t()
            for i in range(kernel_height):
                reached = neighbors[i * dilation[0] :][: len(strip)]
                total[i] += by_output @ reached.reshape(-1, kernel_width * channels)
    return total.view(kernel_height, outputs, kernel_width, channels).permute(1, 3, 0, 2)


def _row_neighbors(
    maps: Tensor, rows: tuple[int, int], width: int, kernel_width: int, padding: int, dilation: int
) -> Tensor:
    """Copy the pixels that a kernel row reaches: [H, B, W, C] to [rows, B, W', kernel_width, C].

    `rows` are the first row and their number. Pixels outside the map are zero.
    """
    top, height = rows
    copies = maps.new_zeros(height, maps.shape[1], width, kernel_width, maps.shape[3])
    first, last = max(-top, 0), min(height, len(maps) - top)
    for j in range(kernel_width):
        shift = j * dilation - padding
        left, right = max(-shift, 0), min(width, maps.shape[2] - shift)
        if first < last and left < right:
            copies[first:last, :, left:right, j] = maps[
                top + first : top + last, :, left + shift : right + shift
            ]
    return copies


def slow_in_bfloat16(conv: nn.Conv2d) -> bool:
    """Return True if the gradients of `conv` take longer in bfloat16 than in float32 on a CPU."""
    group_channels = conv.in_channels // conv.groups
    fast_depthwise = group_channels == 1 and conv.kernel_size == (3, 3) and conv.stride == (1, 1)
    return conv.groups > 1 and group_channels < 16 and not fast_depthwise


def slow_in_float32(conv: nn.Conv2d) -> bool:
    """Return True if `weight_gradient` is faster for `conv` than oneDNN on this CPU."""
    wide = min(conv.in_channels, conv.out_channels) >= 32
    supported = conv.groups == 1 and conv.stride == (1, 1) and conv.kernel_size != (1, 1)
    return CAPABILITY == "AVX2" and wide and supported


def share_parameters(conv: nn.Conv2d) -> nn.Conv2d:
    """Create a plain `nn.Conv2d` like `conv` that shares its parameters."""
    plain = nn.Conv2d(**conv_options(conv))
    plain.weight, plain.bias = conv.weight, conv.bias
    return plain


def conv_options(conv: nn.Conv2d) -> dict[str, Any]:
    """Return the arguments that construct a convolution like `conv`, without memory for weights."""
    names = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    )  # fmt: skip
    options = {name: getattr(conv, name) for name in names}
    return {**options, "bias": conv.bias is not None, "device": "meta"}
