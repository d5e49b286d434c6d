"""RoIAlign through torchvision, one pyramid level at a time."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .checks import wide
from .rois import as_gradients, begin_backward, begin_forward, rois_by_level

# torchvision's CPU kernel stores 40 bytes for each sample of a RoI.
_MAX_SAMPLES = 1 << 22


def roi_align_forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Implement `roi_align_forward.maps`. Computes in float32, or float64 for such features."""
    op, pool = "roi_align_forward", (pooled_height, pooled_width)
    output, shapes = begin_forward(op, inputs, rois, levels, spatial_scales, pool)
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        scale, features = spatial_scales[level], inputs[level].to(wide(output.dtype))
        for part, ratio in _by_sampling_ratio(rois, index, scale, pool, sampling_ratio, aligned):
            pooled = torch.ops.torchvision.roi_align(
                features, rois[part], scale, *pool, ratio, aligned
            )
            output[part] = pooled.to(output.dtype)
    return output


def roi_align_backward(
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
    """Implement `roi_align_backward.maps`."""
    op, pool = "roi_align_backward", (pooled_height, pooled_width)
    sizes = batch_size, channels, heights, widths
    grads, shapes = begin_backward(op, grad, rois, levels, spatial_scales, pool, sizes)
    for level, index in rois_by_level(op, rois, levels, spatial_scales, shapes):
        scale, shape = spatial_scales[level], grads[level].shape
        for part, ratio in _by_sampling_ratio(rois, index, scale, pool, sampling_ratio, aligned):
            grads[level] += torch.ops.torchvision._roi_align_backward(
                grad[part].to(grads[level].dtype), rois[part], scale, *pool, *shape, ratio, aligned
            )
    return as_gradients(grads, grad)


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
    if aligned:
        index, sides = index[(sides > 0).all(dim=1)], sides[(sides > 0).all(dim=1)]
    huge = sides.clamp(min=1).prod(dim=1) > _MAX_SAMPLES
    for part, ratio in (
        (index[~huge], sampling_ratio),
        (index[huge], max(1, int((_MAX_SAMPLES / (pool[0] * pool[1])) ** 0.5))),
    ):
        if len(part):
            yield part, ratio
