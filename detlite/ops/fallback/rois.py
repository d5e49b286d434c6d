"""RoIAlign and RoIPool through torchvision's operators, which pool from one map at a time."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from detlite.ops.roi_utils import empty_maps, empty_pooled

from .checks import FLOATING, check, check_tensors, wide
from .dispatch import fallback

_MAX_LEVELS = 8
_MAX_SAMPLES = 1 << 22  # torchvision's CPU kernel stores 40 bytes for each sample of a RoI
_MAX_CELLS = float(1 << 28)  # torchvision's RoIPool computes cells in int32


@fallback("roi_align_forward.maps", "torchvision")
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
    """Compute in float32, or float64 for such features."""
    pool = pooled_height, pooled_width
    groups = _by_level("roi_align_forward", inputs, rois, levels, spatial_scales, pool)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    for level, scale, index in groups:
        features = inputs[level].to(wide(output.dtype))
        for part, ratio in _by_sampling_ratio(rois, index, scale, pool, sampling_ratio, aligned):
            pooled = torch.ops.torchvision.roi_align(
                features, rois[part], scale, *pool, ratio, aligned
            )
            output[part] = pooled.to(output.dtype)
    return output


@fallback("roi_align_backward.maps", "torchvision")
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
    op, pool = "roi_align_backward", (pooled_height, pooled_width)
    wide_grad = grad.to(wide(grad.dtype))
    grads = [x.zero_() for x in empty_maps(wide_grad, batch_size, channels, heights, widths)]
    groups = _by_level(op, grads, rois, levels, spatial_scales, pool)
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


@fallback("roi_pool_forward.maps", "torchvision")
def roi_pool_forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]:
    pool = pooled_height, pooled_width
    groups = _by_level("roi_pool_forward", inputs, rois, levels, spatial_scales, pool)
    output = empty_pooled(inputs, (len(rois), inputs[0].shape[1], *pool)).zero_()
    argmax = empty_pooled(inputs, output.shape, torch.int32).fill_(-1)
    for level, scale, index in groups:
        features = inputs[level].to(wide(output.dtype))
        lowest = 0.5 * torch.finfo(features.dtype).min
        own = rois[index]
        own[:, 1:].clamp_(-_MAX_CELLS / scale, _MAX_CELLS / scale)
        pooled, place = torch.ops.torchvision.roi_pool(
            features.clamp(min=lowest), own, scale, *pool
        )
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


@fallback("roi_pool_backward.maps", "torchvision")
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
    """Add each bin's gradient to its largest cell."""
    op, pool = "roi_pool_backward", (pooled_height, pooled_width)
    wide_grad = grad.to(wide(grad.dtype))
    grads = [x.zero_() for x in empty_maps(wide_grad, batch_size, channels, heights, widths)]
    groups = _by_level(op, grads, rois, levels, spatial_scales, pool)
    shape = [len(rois), channels, *pool]
    check_tensors(op, grad=(grad, shape, FLOATING), argmax=(argmax, shape, torch.int32))
    for level, scale, index in groups:
        grads[level] += torch.ops.torchvision._roi_pool_backward(
            wide_grad[index].contiguous(), rois[index], argmax[index].contiguous(),
            scale, *pool, *grads[level].shape,
        )  # fmt: skip
    return [x.to(grad.dtype) for x in grads]


def _by_level(
    op: str,
    maps: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    pool: tuple[int, int],
) -> list[tuple[int, float, Tensor]]:
    """Return each level that has RoIs, its scale, and the indices int64 `[k]` of its RoIs.

    Padding, boxes with a NaN or infinite coordinate or side, and levels with an empty map are left
    out: they pool to zeros. Waits for the device.

    Raises:
        RuntimeError: an argument is invalid, also if a RoI names an image or a level that does not
            exist.
    """
    shape = [*maps[0].shape[:2], "H", "W"]
    check_tensors(
        op,
        **{f"inputs[{k}]": (x, shape, FLOATING) for k, x in enumerate(maps)},
        rois=(rois, ["K", 5], wide(maps[0].dtype)),
        levels=(levels, [len(rois)], torch.int64),
    )
    check(len({x.dtype for x in maps}) == 1, f"{op}: inputs must have the same type")
    check(min(pool) >= 1, f"{op}: pooled_height and pooled_width must be at least 1, got {pool}")
    check(
        len(maps) == len(scales) <= _MAX_LEVELS and all(0 < scale < math.inf for scale in scales),
        f"{op}: spatial_scales must be a positive number for each of at most {_MAX_LEVELS} maps, "
        f"got {list(scales)} for {len(maps)} maps",
    )
    image, images = rois[:, 0], len(maps[0])
    used = image != -1  # padding may have any level
    for name, index, count in (("rois[:, 0]", image, images), ("levels", levels, len(maps))):
        wrong = index[used & ~((index >= 0) & (index < count))].tolist()
        check(not wrong, f"{op}: {name} must be from 0 to {count - 1}, got {wrong[:1]}")
    groups = []
    for level, (scale, features) in enumerate(zip(scales, maps, strict=True)):
        low, high = rois[:, 1:3] * scale, rois[:, 3:] * scale
        finite = (low.isfinite() & (high - low).isfinite()).all(dim=1)
        index = (used & finite & (levels == level)).nonzero()[:, 0]
        if len(index) and features.shape[2] and features.shape[3]:
            groups.append((level, scale, index))
    return groups
