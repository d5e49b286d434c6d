"""RoIPool through torchvision, one pyramid level at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detlite.ops.roi_utils import empty_pooled, memory_format

from .checks import (
    check_dtype,
    check_maps,
    check_pool,
    check_rois,
    check_same_device,
    check_scales,
    check_shape,
    wide,
)
from .rois import rois_by_level

# torchvision's kernels compute cells in int32.
_MAX_CELLS = float(1 << 28)


def roi_pool_forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]:
    """Implement `roi_pool_forward.maps`."""
    op, pool = "roi_pool_forward", (pooled_height, pooled_width)
    check_pool(op, *pool)
    check_maps(op, inputs, spatial_scales)
    check_rois(op, inputs[0], rois, levels)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    argmax = empty_pooled(inputs, output.shape, torch.int32).fill_(-1)
    shapes = [(len(x), x.shape[2], x.shape[3]) for x in inputs]
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        scale, features = spatial_scales[level], inputs[level].to(wide(output.dtype))
        lowest = 0.5 * torch.finfo(features.dtype).min
        features = features.clamp(min=lowest)
        own = _bounded(rois[index], scale)
        pooled, place = torch.ops.torchvision.roi_pool(features, own, scale, *pool)
        # torchvision skips NaN and -inf. Here NaN is larger than any number.
        pooled = torch.where(pooled == lowest, -torch.inf, pooled)
        nan = features.isnan()
        if nan.any():
            has_nan, nan_place = torch.ops.torchvision.roi_pool(
                nan.to(features.dtype), own, scale, *pool
            )
            pooled = torch.where(has_nan > 0, torch.nan, pooled)
            place = torch.where(has_nan > 0, nan_place, place)
        output[index] = pooled.to(output.dtype)
        argmax[index] = place.int()
    return output, argmax if need_argmax else argmax.new_empty(0)


def roi_pool_backward(
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
    """Implement `roi_pool_backward.maps`: each bin's gradient goes to its largest cell."""
    op, pool = "roi_pool_backward", (pooled_height, pooled_width)
    check_pool(op, *pool)
    check_scales(op, spatial_scales)
    check_rois(op, grad, rois, levels)
    check_shape(op, "grad", grad, [len(rois), channels, *pool])
    check_dtype(op, "argmax", argmax, torch.int32)
    check_shape(op, "argmax", argmax, list(grad.shape))
    check_same_device(op, grad, argmax=argmax)
    shapes = [(batch_size, *size) for size in zip(heights, widths, strict=True)]
    dtype = wide(grad.dtype)
    grads = [grad.new_zeros((batch_size, channels, *shape[1:]), dtype=dtype) for shape in shapes]
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        grads[level] = torch.ops.torchvision._roi_pool_backward(
            grad[index].to(dtype).contiguous(),
            rois[index],
            argmax[index].contiguous(),
            spatial_scales[level],
            *pool,
            *grads[level].shape,
        )
    layout = memory_format([grad])
    return [x.to(grad.dtype).contiguous(memory_format=layout) for x in grads]


def _bounded(rois: Tensor, scale: float) -> Tensor:
    limit = _MAX_CELLS / scale
    return torch.cat([rois[:, :1], rois[:, 1:].clamp(-limit, limit)], dim=1)
