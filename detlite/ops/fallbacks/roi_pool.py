"""RoIPool by torchvision's operator, one level at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from detlite.ops.dispatch import compute_dtype
from detlite.ops.roi_utils import empty_maps, empty_pooled

from .checks import FLOATING, check_tensors
from .rois import rois_by_level

_MAX_CELLS = float(1 << 28)  # torchvision's kernels compute cells in int32


def forward(
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


def backward(
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
    wide_grad = grad.to(compute_dtype(grad.dtype))
    grads = [x.zero_() for x in empty_maps(wide_grad, batch_size, channels, heights, widths)]
    groups = rois_by_level(op, grads, rois, levels, spatial_scales, pool)
    shape = [len(rois), channels, *pool]
    check_tensors(op, grad=(grad, shape, FLOATING), argmax=(argmax, shape, torch.int32))
    for level, scale, index in groups:
        grads[level] += torch.ops.torchvision._roi_pool_backward(
            wide_grad[index].contiguous(), rois[index], argmax[index].contiguous(),
            scale, *pool, *grads[level].shape,
        )  # fmt: skip
    return [x.to(grad.dtype) for x in grads]
