"""RoIs for RoIAlign and RoIPool: conversion of boxes, precision, and pyramid levels.

Precision: features are float64, float32, float16 or bfloat16, and pooled features have the same
type. Box coordinates and sums are float32 for half types (float64 for float64 features). The
operators therefore need no cast under autocast, and coordinates never round to half types: near
1000 pixels, bfloat16 has a resolution of 4 pixels.

RoIs are `[K, 5]` of (batch index, x1, y1, x2, y2). Batch index -1 is padding: the RoI pools to
zeros and passes no gradient. Any other index outside the batch and any unknown level is an error:
a RuntimeError on the CPU, and on CUDA, where a check would wait for the stream, a device-side
assertion that surfaces at the next synchronization, as in torch's own indexing.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .checks import FLOATING, check, check_tensors
from .dispatch import check_no_tangent, compute_dtype

Boxes = Tensor | Sequence[Tensor]
OutputSize = int | Sequence[int]
_MAX_LEVELS = 8


def pooling_arguments(
    op: str,
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    levels: Tensor | None,
) -> tuple[list[Tensor], Tensor, Tensor, list[float], int, int]:
    """Return the arguments that the operators of RoIAlign and RoIPool share."""
    height, width = as_pair(output_size)
    rois = as_rois(boxes, inputs[0])
    check_no_tangent(op, *inputs, rois)
    rois = rois.detach()
    if levels is None:
        levels = assign_levels(rois[:, 1:], spatial_scales)
    return list(inputs), rois, levels, list(spatial_scales), height, width


def as_rois(boxes: Boxes, features: Tensor) -> Tensor:
    """Return boxes in either form that `roi_align` accepts as RoIs `[K, 5]`.

    Raises:
        ValueError: a shape is wrong, or the length of the list differs from the batch size.
    """
    dtype = compute_dtype(features.dtype)
    if isinstance(boxes, Tensor):
        if boxes.dim() != 2 or boxes.shape[1] != 5:
            raise ValueError(f"boxes must have shape [K, 5], got {list(boxes.shape)}")
        return boxes.to(dtype)
    if len(boxes) != features.shape[0]:
        raise ValueError(
            f"boxes must list one tensor for each of {features.shape[0]} images, got {len(boxes)}"
        )
    if not boxes:
        return features.new_empty((0, 5), dtype=dtype)
    rois = []
    for i, image_boxes in enumerate(boxes):
        if image_boxes.dim() != 2 or image_boxes.shape[1] != 4:
            raise ValueError(f"boxes[{i}] must have shape [L, 4], got {list(image_boxes.shape)}")
        rois.append(pad(image_boxes.to(dtype), (1, 0), value=i))
    return torch.cat(rois)


def assign_levels(boxes: Tensor, spatial_scales: Sequence[float]) -> Tensor:
    """Choose the pyramid level of each box by its size: FPN (Lin et al., 2017), equation 1.

    A box with the side of an ImageNet crop, 224 pixels, belongs to the level of stride 16, a box
    of twice the side to the next level.

    Args:
        boxes: `[K, 4]` of (x1, y1, x2, y2).
        spatial_scales: 1 / stride of each level, the finest first, each half of the previous one.

    Returns:
        int64 `[K]`: indices into `spatial_scales`; 0 if the area is negative or NaN.

    Raises:
        ValueError: a scale is not a positive number.
    """
    if len(spatial_scales) < 2:
        return boxes.new_zeros(boxes.shape[:1], dtype=torch.int64)
    for scale in spatial_scales:
        if not 0 < scale < math.inf:
            raise ValueError(f"spatial_scales must be positive, got {scale}")
    finest = round(-math.log2(spatial_scales[0]))
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    side = ((x2 - x1) * (y2 - y1)).sqrt()
    # The small addend is part of the usual implementation: a box of exactly a level's size belongs
    # to it in spite of rounding.
    size = side / 224 + 1e-6
    # Comparisons are exact where log2 rounds, and False where the size is NaN.
    coarser = [size >= 2.0 ** (level + finest - 4) for level in range(1, len(spatial_scales))]
    return torch.stack(coarser).sum(dim=0)


def as_pair(output_size: OutputSize) -> tuple[int, int]:
    """Return an output size of one or two numbers as (height, width)."""
    if isinstance(output_size, int):
        return output_size, output_size
    if len(output_size) != 2:
        raise ValueError(f"output_size must be one number or two, got {output_size!r}")
    return output_size[0], output_size[1]


def memory_format(maps: Sequence[Tensor]) -> torch.memory_format:
    """Return the memory format of pooled features and gradients: channels last if one of the maps
    is, as in the kernels."""
    is_channels_last = (x.shape[1] > 1 and x.stride(1) == 1 and not x.is_contiguous() for x in maps)
    return torch.channels_last if any(is_channels_last) else torch.contiguous_format


def empty_pooled(
    maps: Sequence[Tensor], shape: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """Return an uninitialized result with four dimensions in the memory format of the maps."""
    return torch.empty(
        shape,
        dtype=dtype or maps[0].dtype,
        device=maps[0].device,
        memory_format=memory_format(maps),
    )


def empty_maps(
    like: Tensor, batch_size: int, channels: int, heights: Sequence[int], widths: Sequence[int]
) -> list[Tensor]:
    """Return uninitialized gradients of the maps, in the type and format of the pooled gradient."""
    return [
        empty_pooled([like], (batch_size, channels, height, width))
        for height, width in zip(heights, widths, strict=True)
    ]


def zero_grads(
    grad: Tensor, batch_size: int, channels: int, heights: Sequence[int], widths: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """Return the pooled gradient in the type of sums, and zero gradients of the maps in it."""
    wide = grad.to(compute_dtype(grad.dtype))
    return wide, [x.zero_() for x in empty_maps(wide, batch_size, channels, heights, widths)]


def save_pooling(ctx: Any, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, Tensor]) -> None:
    """Save the arguments of a backward operator in their order, its further options last."""
    maps, rois, levels, scales, height, width, *ctx.options = inputs
    argmax = () if isinstance(output, Tensor) else output[1:]
    ctx.save_for_backward(rois, levels, *argmax)
    batch_size, channels = maps[0].shape[:2]
    sizes = [x.shape[2] for x in maps], [x.shape[3] for x in maps]
    ctx.args = scales, height, width, batch_size, channels, *sizes
    ctx.memory_format = memory_format(maps)


def rois_by_level(
    op: str,
    maps: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    pool: tuple[int, int],
) -> list[tuple[int, float, Tensor]]:
    """Return each level that has RoIs, its scale, and the indices int64 `[k]` of its RoIs.

    Padding, boxes with a NaN or infinite coordinate or side, and levels with an empty map are
    skipped, because they pool to zeros. Waits for the device.

    Raises:
        RuntimeError: an argument is invalid, or a RoI refers to an image or level that does not
            exist.
    """
    shape = [*maps[0].shape[:2], "H", "W"]
    check_tensors(
        op,
        **{f"inputs[{k}]": (x, shape, FLOATING) for k, x in enumerate(maps)},
        rois=(rois, ["K", 5], compute_dtype(maps[0].dtype)),
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
