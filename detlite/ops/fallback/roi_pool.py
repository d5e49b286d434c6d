"""RoIPool through torchvision, one pyramid level at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from detlite.ops.roi_utils import empty_pooled

from .checks import check_dtype, check_same_device, check_shape, wide
from .rois import as_gradients, begin_backward, begin_forward, rois_by_level

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
    output, shapes = begin_forward(op, inputs, rois, levels, spatial_scales, pool)
    argmax = empty_pooled(inputs, output.shape, torch.int32).fill_(-1)
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        scale, features = spatial_scales[level], inputs[level].to(wide(output.dtype))
        lowest = 0.5 * torch.finfo(features.dtype).min
        features = features.clamp(min=lowest)
        own = rois[index]
        own[:, 1:].clamp_(-_MAX_CELLS / scale, _MAX_CELLS / scale)
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
    sizes = batch_size, channels, heights, widths
    grads, shapes = begin_backward(op, grad, rois, levels, spatial_scales, pool, sizes)
    check_dtype(op, "argmax", argmax, torch.int32)
    check_shape(op, "argmax", argmax, list(grad.shape))
    check_same_device(op, grad, argmax=argmax)
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        grads[level] = torch.ops.torchvision._roi_pool_backward(
            grad[index].to(wide(grad.dtype)).contiguous(),
            rois[index],
            argmax[index].contiguous(),
            spatial_scales[level],
            *pool,
            *grads[level].shape,
        )
    return as_gradients(grads, grad)
