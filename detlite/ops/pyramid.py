"""RoIAlign and RoIPool over a feature pyramid: every RoI from the level that fits its size.

One call does what takes a call, a selection and a scatter for each level otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detlite import _C  # noqa: F401  (loads the kernels)

from .rois import (
    Boxes,
    OutputSize,
    as_pair,
    as_rois,
    empty_argmax,
    empty_map,
    empty_pooled,
    in_format_of,
    is_channels_last,
    needs_gradient,
    read_argmax,
)

_align_forward = torch.ops.detlite.pyramid_roi_align_forward
_align_backward = torch.ops.detlite.pyramid_roi_align_backward
_pool_forward = torch.ops.detlite.pyramid_roi_pool_forward
_pool_backward = torch.ops.detlite.pyramid_roi_pool_backward


def pyramid_roi_align(
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    canonical_size: float = 224.0,
    canonical_level: int = 4,
) -> Tensor:
    """`roi_align` of each box on its own level of a pyramid.

    Args:
        inputs: one `Tensor[N, C, H_l, W_l]` for each level, finest first, at most 8, of one type,
            batch size and number of channels.
        boxes: as for `roi_align`.
        output_size: as for `roi_align`.
        spatial_scales: feature cells a box unit, for each level: 1 / stride, each half of the one
            before.
        sampling_ratio: as for `roi_align`.
        aligned: as for `roi_align`.
        canonical_size: the side of a box that belongs to `canonical_level`; see `assign_levels`.
        canonical_level: a level's number, the binary logarithm of its stride.

    Returns:
        `Tensor[K, C, height, width]`, as `roi_align` returns, in the boxes' order.

    Raises:
        ValueError: `boxes` or `output_size` has the wrong shape.
        RuntimeError: any other argument is refused by the kernel; the message names it.
    """
    height, width = as_pair(output_size)
    return _align_forward(
        list(inputs),
        as_rois(boxes, inputs[0]),
        list(spatial_scales),
        height,
        width,
        sampling_ratio,
        aligned,
        canonical_size,
        canonical_level,
    )


def pyramid_roi_pool(
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    canonical_size: float = 224.0,
    canonical_level: int = 4,
) -> Tensor:
    """`roi_pool` of each box on its own level of a pyramid; arguments as `pyramid_roi_align`."""
    height, width = as_pair(output_size)
    output, _ = _pool_forward(
        list(inputs),
        as_rois(boxes, inputs[0]),
        list(spatial_scales),
        height,
        width,
        canonical_size,
        canonical_level,
        needs_gradient(*inputs),
    )
    return output


def assign_levels(
    boxes: Tensor,
    spatial_scales: Sequence[float],
    canonical_size: float = 224.0,
    canonical_level: int = 4,
) -> Tensor:
    """The rule by which the kernels choose a level: FPN (Lin et al., 2017), equation 1.

    Args:
        boxes: `Tensor[K, 4]` of (x1, y1, x2, y2).
        spatial_scales: of each level, finest first.
        canonical_size: a box of this side, as of an ImageNet crop, belongs to `canonical_level`.
        canonical_level: the binary logarithm of a level's stride; a box of twice the side belongs
            to the next.

    Returns:
        int64 `Tensor[K]`: indices into `spatial_scales`; 0 where the area is negative or NaN.
    """
    finest = round(-math.log2(spatial_scales[0]))
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    # frexp is exact where log2 rounds: size = mantissa * 2^exponent, with mantissa in [0.5, 1).
    size = side / canonical_size + 1e-6
    level = torch.frexp(size).exponent - 1 + (canonical_level - finest)
    last = len(spatial_scales) - 1
    level = torch.where(size == math.inf, last, level.clamp(0, last))
    return torch.where(size > 0, level, 0).long()


@torch.library.register_fake("detlite::pyramid_roi_align_forward")
def _(
    inputs: list[Tensor],
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
    canonical_size: float,
    canonical_level: int,
) -> Tensor:
    shape = (rois.shape[0], inputs[0].shape[1], pooled_height, pooled_width)
    return empty_pooled(inputs, shape)


@torch.library.register_fake("detlite::pyramid_roi_align_backward")
def _(
    grad: Tensor,
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: list[int],
    widths: list[int],
    sampling_ratio: int,
    aligned: bool,
    canonical_size: float,
    canonical_level: int,
) -> list[Tensor]:
    return [
        empty_map(grad, (batch_size, channels, height, width))
        for height, width in zip(heights, widths, strict=True)
    ]


@torch.library.register_fake("detlite::pyramid_roi_pool_forward")
def _(
    inputs: list[Tensor],
    rois: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    canonical_size: float,
    canonical_level: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]:
    shape = (rois.shape[0], inputs[0].shape[1], pooled_height, pooled_width)
    return empty_pooled(inputs, shape), empty_argmax(inputs, shape, need_argmax)


@torch.library.register_fake("detlite::pyramid_roi_pool_backward")
def _(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scales: list[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: list[int],
    widths: list[int],
    canonical_size: float,
    canonical_level: int,
) -> list[Tensor]:
    return [
        empty_map(grad, (batch_size, channels, height, width))
        for height, width in zip(heights, widths, strict=True)
    ]


def _sizes(inputs: Sequence[Tensor]) -> tuple[int, int, list[int], list[int]]:
    batch_size, channels = inputs[0].shape[:2]
    return batch_size, channels, [x.shape[2] for x in inputs], [x.shape[3] for x in inputs]


def _setup_align(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, rois, *ctx.args = inputs
    ctx.save_for_backward(rois)
    ctx.sizes = _sizes(maps)
    ctx.channels_last = is_channels_last(*maps)


def _differentiate_align(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (rois,) = ctx.saved_tensors
    scales, height, width, *rule = ctx.args
    dense = in_format_of(grad, ctx.channels_last)
    grads = _align_backward(dense, rois, scales, height, width, *ctx.sizes, *rule)
    return grads, *[None] * 8


def _setup_align_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    grad, rois, scales, height, width, _, _, _, _, *rule = inputs
    ctx.save_for_backward(rois)
    ctx.args = scales, height, width, *rule
    ctx.channels_last = is_channels_last(grad)


def _differentiate_align_backward(ctx: Any, grad_grads: list[Tensor]) -> tuple[Any, ...]:
    # Pooling is linear in the features: the derivative of its transpose is pooling itself.
    (rois,) = ctx.saved_tensors
    dense = [in_format_of(x, ctx.channels_last) for x in grad_grads]
    return _align_forward(dense, rois, *ctx.args), *[None] * 12


def _setup_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    maps, rois, *ctx.args, _ = inputs
    ctx.save_for_backward(rois, output[1])
    ctx.sizes = _sizes(maps)
    ctx.channels_last = is_channels_last(*maps)


def _differentiate_pool(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    rois, argmax = ctx.saved_tensors
    scales, height, width, *rule = ctx.args
    dense = in_format_of(grad, ctx.channels_last)
    grads = _pool_backward(dense, rois, argmax, scales, height, width, *ctx.sizes, *rule)
    return grads, *[None] * 7


def _setup_pool_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, rois, argmax, scales, _, _, _, _, _, _, *rule = inputs
    ctx.save_for_backward(rois, argmax)
    ctx.scales, ctx.rule = scales, rule


def _differentiate_pool_backward(ctx: Any, grad_grads: list[Tensor]) -> tuple[Any, ...]:
    # The gradient moves each pooled value to its argmax cell; its derivative reads them back.
    rois, argmax = ctx.saved_tensors
    levels = assign_levels(rois[:, 1:], ctx.scales, *ctx.rule)
    pooled = grad_grads[0].new_zeros(argmax.shape)
    for level, grad_grad in enumerate(grad_grads):
        here = (levels == level)[:, None, None, None]
        pooled = pooled + read_argmax(grad_grad, rois, torch.where(here, argmax, -1))
    return pooled, *[None] * 11


torch.library.register_autograd(
    "detlite::pyramid_roi_align_forward", _differentiate_align, setup_context=_setup_align
)
torch.library.register_autograd(
    "detlite::pyramid_roi_align_backward",
    _differentiate_align_backward,
    setup_context=_setup_align_backward,
)
torch.library.register_autograd(
    "detlite::pyramid_roi_pool_forward", _differentiate_pool, setup_context=_setup_pool
)
torch.library.register_autograd(
    "detlite::pyramid_roi_pool_backward",
    _differentiate_pool_backward,
    setup_context=_setup_pool_backward,
)
