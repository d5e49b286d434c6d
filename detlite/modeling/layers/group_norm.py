"""Group norm for channels-last maps on CPUs (Wu & He, https://arxiv.org/abs/1803.08494)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_CACHE_SIZE = 2**18  # numbers that stay in the cache until they are read again
_EXACT_PIXELS = 2**12  # pixels whose sum in float32, one by one, is exact to a millionth


class GroupNorm(nn.GroupNorm):
    """Group norm that is exact and fast on channels-last maps on a CPU.

    torch adds up the pixels of such maps one by one in float32. On 400 x 608 pixels the fourth
    digit is lost, which moves boxes by some hundredths of a pixel. Its backward pass in bfloat16
    is five times as slow as batch norm's; in float32, it is fast.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [B, C, H, W]."""
        if (
            torch.compiler.is_compiling()  # a graph must not depend on the size of a map
            or x.device.type != "cpu"
            or not x.is_contiguous(memory_format=torch.channels_last)
        ):
            return super().forward(x)
        if self.training and torch.is_grad_enabled():  # torch's sums are exact enough for it
            if x.dtype == torch.float32:
                return super().forward(x)
            norm: Tensor = _GroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)
            return norm
        if x.dtype != torch.float32 or x.shape[2] * x.shape[3] <= _EXACT_PIXELS:
            return super().forward(x)
        values = x.permute(0, 2, 3, 1).flatten(1, 2)  # [B, H W, C]
        mean = self._group_means(values.mean(dim=1))
        rows = max(1, _CACHE_SIZE // (values.shape[0] * values.shape[2]))
        squares = [(part - mean).square_().sum(dim=1) for part in values.split(rows, dim=1)]
        variance = self._group_means(torch.stack(squares).sum(dim=0) / values.shape[1])
        scale = (variance + self.eps).rsqrt() * self.weight
        normalized = torch.addcmul(self.bias - mean * scale, values, scale)
        return normalized.unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)

    def _group_means(self, means: Tensor) -> Tensor:
        """Average means [B, C] over groups, and repeat them for each channel: [B, 1, C]."""
        groups = means.unflatten(1, (self.num_groups, -1)).mean(dim=2, keepdim=True)
        return groups.expand(-1, -1, means.shape[1] // self.num_groups).flatten(1)[:, None]


class _GroupNorm(torch.autograd.Function):
    """torch's group norm of a channels-last map, with a backward pass by operators of batch norm.

    With h the normalized input, w the weight and r the inverse deviation of a group, the gradient
    is dx = r (w dy - mean(w dy) - h mean(w dy h)), with means over a group of an image. Batch
    norm's operators sum dy and dy h over the pixels of a channel, which gives the means, and then
    apply the terms that are linear in dy and in x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> Tensor:
        size, channels, height, width = x.shape
        y, mean, rstd = torch.native_group_norm(
            x, weight, bias, size, channels, height * width, groups, eps
        )
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight, *statistics = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
        groups = statistics[0].shape[1]
        dtype = torch.promote_types(x.dtype, torch.float32)
        scale = weight.to(dtype)
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        x_grad, weight_grad, bias_grad = torch.empty_like(x), zero.clone(), zero.clone()
        # One image at a time, because batch norm has one mean and deviation per channel.
        for k in range(x.shape[0]):
            image, dy = x[k : k + 1], gradient[k : k + 1]
            mean, rstd = (
                value[k].to(dtype).repeat_interleave(channels // groups) for value in statistics
            )
            _, sum_h, sum_1 = torch.ops.aten.native_batch_norm_backward(
                dy, image, one, None, None, mean, rstd, True, 0.0, [False, True, True]
            )
            weight_grad += sum_h
            bias_grad += sum_1
            mean_h, mean_1 = (
                (scale * value).view(groups, -1).sum(dim=1).repeat_interleave(channels // groups)
                * (groups / (channels * pixels))
                for value in (sum_h, sum_1)
            )
            slope = -mean_h * rstd * rstd
            shift = -slope * mean - mean_1 * rstd
            torch.add(
                _linear(dy, rstd * scale, zero),
                _linear(image, slope, shift),
                out=x_grad[k : k + 1],
            )
        return x_grad, weight_grad.to(weight.dtype), bias_grad.to(weight.dtype), None, None


def _linear(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute x * scale + shift per channel in one pass, with scale and shift in float32."""
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    return torch.batch_norm(x, scale, shift, zero, one, False, 0.0, 0.0, False)
