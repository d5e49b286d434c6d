"""RoIAlign by torchvision's operator, one level at a time."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from detlite.ops.dispatch import compute_dtype
from detlite.ops.roi_utils import empty_maps, empty_pooled

from .checks import FLOATING, check_tensors
from .rois import rois_by_level

_MAX_SAMPLES = 1 << 22  # torchvision's CPU kernel stores 40 bytes for each sample of a RoI


def forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Compute in float32, or float64 for such features."""
    pool = pooled_height, pooled_width
    groups = rois_by_level("roi_align_forward", inputs, rois, levels, spatial_scales, pool)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    for level, scale, index in groups:
        features = inputs[level].to(compute_dtype(output.dtype))
        for part, ratio in _by_sampling_ratio(rois, index, scale, pool, sampling_ratio, aligned):
            pooled = torch.ops.torchvision.roi_align(
                features, rois[part], scale, *pool, ratio, aligned
            )
            output[part] = pooled.to(output.dtype)
    return output


def backward(
    grad: Tensor,
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: Sequence[int],
    widths: Sequence[int],
    sampling_ratio: int,
    aligned: bool,
) -> list[Tensor]:
    op, pool = "roi_align_backward", (pooled_height, pooled_width)
    wide_grad = grad.to(compute_dtype(grad.dtype))
    grads = [x.zero_() for x in empty_maps(wide_grad, batch_size, channels, heights, widths)]
    groups = rois_by_level(op, grads, rois, levels, spatial_scales, pool)
    check_tensors(op, grad=(grad, [len(rois), channels, *pool], FLOATING))
    for level, scale, index in groups:
        shape = grads[level].shape
        for part, ratio in _by_sampling_ratio(rois, index, scale, pool, sampling_ratio, aligned):
            grads[level] += torch.ops.torchvision._roi_align_backward(
                wide_grad[part], rois[part], scale, *pool, *shape, ratio, aligned
            )
    return [x.to(grad.dtype) for x in grads]


def _by_sampling_ratio(
    rois: Tensor,
    index: Tensor,
    scale: float,
    pool: tuple[int, int],
    sampling_ratio: int,
    aligned: bool,
) -> Iterator[tuple[Tensor, int]]:
    """Yield RoI indices with their sampling ratio.

    Adaptive sampling takes one sample for each cell of a RoI, however far the RoI exceeds the map.
    RoIs of more than _MAX_SAMPLES cells take about that many samples instead. Reversed RoIs take
    none, unless they are forced to one cell.
    """
    if sampling_ratio > 0:
        yield index, sampling_ratio
        return
    sides = (rois[index, 3:] - rois[index, 1:3]) * scale
    valid = (sides > 0).all(dim=1) | (not aligned)
    huge = sides.clamp(min=1).prod(dim=1) > _MAX_SAMPLES
    fixed = max(1, math.isqrt(_MAX_SAMPLES // (pool[0] * pool[1])))
    for part, ratio in ((index[valid & ~huge], 0), (index[valid & huge], fixed)):
        if len(part):
            yield part, ratio
