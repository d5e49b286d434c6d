"""Convolutions with asymmetric padding, and with faster gradients on CPUs.

On CPUs, torch computes convolutions by oneDNN. Two kinds of gradients are slow: gradients of
convolutions with few channels per group in bfloat16, and weight gradients in float32 on processors
without AVX-512. See `benchmarks/results/operators/conv_gradients_avx2.md`.

Shapes: B images, C input and D output channels, H x W pixels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

CAPABILITY = torch.backends.cpu.get_cpu_capability()
CACHE_BLOCK = 2**20  # floats that weight_gradient copies at a time, so that they stay in the cache


class _ConvLike(nn.Conv2d):
    """Convolution with the options and parameters of `conv`.

    `margins` are zeros to add at the left, right, top and bottom; None: the padding of `conv`.
    """

    def __init__(self, conv: nn.Conv2d, margins: tuple[int, int, int, int] | None = None) -> None:
        super().__init__(**_conv_options(conv))
        self.weight, self.bias = conv.weight, conv.bias
        self.margins: Any = margins or getattr(conv, "margins", None)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, C, H, W]."""
        return super().forward(x if self.margins is None else F.pad(x, self.margins))


class PaddedConv2d(_ConvLike):
    """Convolution like `conv` that pads each side of a map differently."""


class CPUConv2d(_ConvLike):
    """Convolution like `conv`, padded by zeros, with faster gradients where possible."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(conv)
        self._use_float32, self._use_matmuls = slow_in_bfloat16(conv), slow_in_float32(conv)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        in_float32 = self._use_float32 and dtype == torch.bfloat16
        use_matmuls = (
            self._use_matmuls
            and weight.requires_grad
            and dtype == weight.dtype == torch.float32
            and x.is_contiguous(memory_format=torch.channels_last)
        )
        faster = torch.is_grad_enabled() and (in_float32 or use_matmuls)
        if not faster or x.device.type != "cpu":
            return super()._conv_forward(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            options = self.stride, self.padding, self.dilation, self.groups
            result: Tensor = _Convolution.apply(x.to(dtype), weight, bias, options, use_matmuls)
            return result


class StridedPointwiseConv2d(_ConvLike):
    """1x1 convolution with a stride, which drops pixels before it computes gradients.

    torch 2.14 crashes in the gradient of such a convolution of 2 to 15 channels on CPUs, if maps
    are channels-last.
    """

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
    """Convolve a map [B, C, H, W] in its type. The gradients are computed in float32, and with
    `use_matmuls` the weight gradient by `weight_gradient`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Any, use_matmuls: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options, ctx.use_matmuls = options, use_matmuls
        ctx.bias_shape = None if bias is None else list(bias.shape)
        bias = None if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, *options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.options
        mask = ctx.needs_input_grad[:3]
        if ctx.use_matmuls:
            # The bias too, because oneDNN would compute the weight gradient with it.
            mask = (mask[0], False, False)
        x_grad, weight_grad, bias_grad = torch.ops.aten.convolution_backward(
            gradient.float(), x.float(), weight.float(), ctx.bias_shape, stride, padding, dilation,
            False, [0, 0], groups, mask,
        )  # fmt: skip
        if ctx.use_matmuls:
            weight_grad = weight_gradient(gradient, x, weight.shape[2:], padding, dilation)
            bias_grad = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        x_grad = None if x_grad is None else x_grad.to(x.dtype)
        return x_grad, weight_grad, bias_grad, None, None


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
        padded = F.pad(maps, (0, 0, padding[1], padding[1], 0, 0, padding[0], padding[0]))
        shifted = [padded[:, :, j * dilation[1] :][:, :, :width] for j in range(kernel_width)]
        for top in range(0, height, rows):
            strip = gradients[top : top + rows]
            end = top + len(strip) + (kernel_height - 1) * dilation[0]
            neighbors = torch.stack([x[top:end] for x in shifted], dim=3)
            by_output = strip.reshape(-1, outputs).t()
            for i in range(kernel_height):
                reached = neighbors[i * dilation[0] :][: len(strip)]
                total[i] += by_output @ reached.reshape(-1, kernel_width * channels)
    return total.view(kernel_height, outputs, kernel_width, channels).permute(1, 3, 0, 2)


def slow_in_bfloat16(conv: nn.Conv2d) -> bool:
    """Return True if the gradients of `conv` take longer in bfloat16 than in float32 on a CPU."""
    group_channels = conv.in_channels // conv.groups
    fast_depthwise = group_channels == 1 and conv.kernel_size == (3, 3) and conv.stride == (1, 1)
    supported = conv.groups > 1 and not isinstance(conv.padding, str)
    return supported and group_channels < 16 and not fast_depthwise


def slow_in_float32(conv: nn.Conv2d) -> bool:
    """Return True if `weight_gradient` is faster for `conv` than oneDNN on this CPU."""
    wide = min(conv.in_channels, conv.out_channels) >= 32
    spatial = conv.stride == (1, 1) and conv.kernel_size != (1, 1)
    supported = conv.groups == 1 and not isinstance(conv.padding, str)
    return CAPABILITY == "AVX2" and wide and spatial and supported


def share_parameters(conv: nn.Conv2d) -> nn.Conv2d:
    """Create a plain `nn.Conv2d` like `conv` that shares its parameters."""
    plain = nn.Conv2d(**_conv_options(conv))
    plain.weight, plain.bias = conv.weight, conv.bias
    return plain


def _conv_options(conv: nn.Conv2d) -> dict[str, Any]:
    """Return the arguments that construct a convolution like `conv`, without memory for weights."""
    names = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    )  # fmt: skip
    options = {name: getattr(conv, name) for name in names}
    return {**options, "bias": conv.bias is not None, "device": "meta"}
