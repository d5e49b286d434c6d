"""RoIPool (Girshick, Fast R-CNN, 2015, section 2.1) on one map or over a feature pyramid."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .checks import FLOATING, check_tensors
from .dispatch import compute_dtype, operator, refuse_second_derivative
from .roi_utils import (
    Boxes,
    OutputSize,
    as_pair,
    empty_maps,
    empty_pooled,
    pooling_arguments,
    rois_by_level,
    save_pooling,
    zero_grads,
)

_MAX_CELLS = float(1 << 28)  # torchvision's kernels compute cells in int32
torch.fx.wrap("roi_pool")  # one node of a torch.fx graph


def roi_pool(
    input: Tensor, boxes: Boxes, output_size: OutputSize, spatial_scale: float = 1.0
) -> Tensor:
    """Pool the features of each box to a fixed size by the maximum of each bin.

    See `roi_align` for arguments, result and errors. Scaled boxes are rounded to whole cells,
    the last one included. Bins without a cell on the map are 0. A NaN is larger than any number.
    """
    return pyramid_roi_pool([input], boxes, output_size, [spatial_scale])


def pyramid_roi_pool(
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    levels: Tensor | None = None,
) -> Tensor:
    """Apply `roi_pool` to each box on its own pyramid level; arguments as `pyramid_roi_align`."""
    pool = pooling_arguments("roi_pool", inputs, boxes, output_size, spatial_scales, levels)
    need_argmax = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    output, _ = torch.ops.detlite.roi_pool_forward.maps(*pool, need_argmax)
    return output


class RoIPool(nn.Module):
    """`roi_pool` as a module: everything but the features and boxes is fixed."""

    def __init__(self, output_size: OutputSize, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size = as_pair(output_size)
        self.spatial_scale = spatial_scale

    def forward(self, input: Tensor, boxes: Boxes) -> Tensor:
        return roi_pool(input, boxes, self.output_size, self.spatial_scale)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, spatial_scale={self.spatial_scale}"


# ---- The operators, and their fallbacks: torchvision's operator, one level at a time


def _pooled_shapes(inputs: list[Tensor], rois: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    _levels, _scales, height, width, need_argmax = others
    shape = (rois.shape[0], inputs[0].shape[1], height, width)
    no_argmax = inputs[0].new_empty((0,), dtype=torch.int32)
    argmax = empty_pooled(inputs, shape, torch.int32) if need_argmax else no_argmax
    if need_argmax and argmax.is_cuda:  # the format that the CUDA gradient reads
        argmax = argmax.contiguous(memory_format=torch.channels_last)
    return empty_pooled(inputs, shape), argmax


def _map_shapes(grad: Tensor, *args: Any) -> list[Tensor]:
    return empty_maps(grad, *args[-4:])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    dense = grad.contiguous(memory_format=ctx.memory_format)
    arguments = *ctx.saved_tensors, *ctx.args
    return torch.ops.detlite.roi_pool_backward.maps(dense, *arguments), *[None] * 6


@operator("roi_pool_forward.maps", "torchvision", _pooled_shapes, _differentiate, save_pooling)
def _forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]:
    pool = pooled_height, pooled_width
    groups = rois_by_level("roi_pool_forward", inputs, rois, levels, spatial_scales, pool)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    argmax = empty_pooled(inputs, output.shape, torch.int32).fill_(-1)
    for level, scale, index in groups:
        features = inputs[level].to(compute_dtype(output.dtype))
        lowest = 0.5 * torch.finfo(features.dtype).min
        level_rois = rois[index]
        level_rois[:, 1:].clamp_(-_MAX_CELLS / scale, _MAX_CELLS / scale)
        pooled, cell = torch.ops.torchvision.roi_pool(
            features.clamp(min=lowest), level_rois, scale, *pool
        )
        # torchvision skips NaN and -inf. Here NaN is larger than any number.
        pooled = torch.where(pooled == lowest, -torch.inf, pooled)
        nan = features.isnan()
        if nan.any():
            has_nan, nan_cell = torch.ops.torchvision.roi_pool(
                nan.to(features.dtype), level_rois, scale, *pool
            )
            pooled = torch.where(has_nan > 0, torch.nan, pooled)
            cell = torch.where(has_nan > 0, nan_cell, cell)
        output[index] = pooled.to(output.dtype)
        argmax[index] = cell.int()
    return output, argmax if need_argmax else argmax.new_empty(0)


@operator("roi_pool_backward.maps", "torchvision", _map_shapes, refuse_second_derivative)
def _backward(
    grad: Tensor,
    rois: Tensor,
    levels: Tensor,
    argmax: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: Sequence[int],
    widths: Sequence[int],
) -> list[Tensor]:
    """Add each bin's gradient to its largest cell."""
    op, pool = "roi_pool_backward", (pooled_height, pooled_width)
    wide_grad, grads = zero_grads(grad, batch_size, channels, heights, widths)
    groups = rois_by_level(op, grads, rois, levels, spatial_scales, pool)
    shape = [len(rois), channels, *pool]
    check_tensors(op, grad=(grad, shape, FLOATING), argmax=(argmax, shape, torch.int32))
    for level, scale, index in groups:
        grads[level] += torch.ops.torchvision._roi_pool_backward(
            wide_grad[index].contiguous(), rois[index], argmax[index].contiguous(),
            scale, *pool, *grads[level].shape,
        )  # fmt: skip
    return [x.to(grad.dtype) for x in grads]
