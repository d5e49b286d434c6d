"""RoIPool (Girshick, Fast R-CNN, 2015, section 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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

_forward = torch.ops.detlite.roi_pool_forward
_backward = torch.ops.detlite.roi_pool_backward


def roi_pool(
    input: Tensor, boxes: Boxes, output_size: OutputSize, spatial_scale: float = 1.0
) -> Tensor:
    """Pools each box's features to one size by taking the largest of each bin.

    Args:
        input: `Tensor[N, C, H, W]`, features; see `detlite.ops.rois` on precision.
        boxes: `Tensor[K, 5]` of (batch index, x1, y1, x2, y2), or a list with a `Tensor[L, 4]`
            for each image, in the coordinates of the input image. Scaled boxes are rounded to
            whole cells, the last one included.
        output_size: height and width of the pooled features, or one number for both.
        spatial_scale: feature cells a box unit; 1 / 16 for features of stride 16.

    Returns:
        `Tensor[K, C, height, width]` in the type and memory format of `input`. A bin with no cell
        on the map is 0, and so is every bin of a box with a coordinate that is NaN or infinite; a
        NaN feature wins its bin. Boxes get no gradient.

    Raises:
        ValueError: `boxes` or `output_size` has the wrong shape.
        RuntimeError: any other argument is refused by the kernel; the message names it.
    """
    height, width = as_pair(output_size)
    output, _ = _forward(
        input, as_rois(boxes, input), spatial_scale, height, width, needs_gradient(input)
    )
    return output


class RoIPool(nn.Module):
    """`roi_pool` with everything but the features and boxes fixed."""

    def __init__(self, output_size: OutputSize, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size = as_pair(output_size)
        self.spatial_scale = spatial_scale

    def forward(self, input: Tensor, boxes: Boxes) -> Tensor:
        return roi_pool(input, boxes, self.output_size, self.spatial_scale)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, spatial_scale={self.spatial_scale}"


@torch.library.register_fake("detlite::roi_pool_forward")
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool = True,
) -> tuple[Tensor, Tensor]:
    shape = (rois.shape[0], input.shape[1], pooled_height, pooled_width)
    return empty_pooled([input], shape), empty_argmax([input], shape, need_argmax)


@torch.library.register_fake("detlite::roi_pool_backward")
def _(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    return empty_map(grad, (batch_size, channels, height, width))


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, rois, *ctx.args, _ = inputs
    ctx.save_for_backward(rois, output[1])
    ctx.shape = input.shape
    ctx.channels_last = is_channels_last(input)


def _differentiate_forward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    rois, argmax = ctx.saved_tensors
    dense = in_format_of(grad, ctx.channels_last)
    return _backward(dense, rois, argmax, *ctx.args, *ctx.shape), *[None] * 5


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, rois, argmax, *_ = inputs
    ctx.save_for_backward(rois, argmax)


def _differentiate_backward(ctx: Any, grad_grad: Tensor) -> tuple[Any, ...]:
    # The gradient moves each pooled value to its argmax cell; its derivative reads them back.
    rois, argmax = ctx.saved_tensors
    return read_argmax(grad_grad, rois, argmax), *[None] * 9


torch.library.register_autograd(
    "detlite::roi_pool_forward", _differentiate_forward, setup_context=_setup_forward
)
torch.library.register_autograd(
    "detlite::roi_pool_backward", _differentiate_backward, setup_context=_setup_backward
)
