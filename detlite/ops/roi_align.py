"""RoIAlign (He et al., Mask R-CNN, 2017, section 3)."""

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
    empty_map,
    empty_pooled,
    in_format_of,
    is_channels_last,
)

_forward = torch.ops.detlite.roi_align_forward
_backward = torch.ops.detlite.roi_align_backward


def roi_align(
    input: Tensor,
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Pools each box's features to one size by averaging bilinear samples.

    Args:
        input: `Tensor[N, C, H, W]`, features; see `detlite.ops.rois` on precision.
        boxes: `Tensor[K, 5]` of (batch index, x1, y1, x2, y2), or a list with a `Tensor[L, 4]`
            for each image, in the coordinates of the input image.
        output_size: height and width of the pooled features, or one number for both.
        spatial_scale: feature cells a box unit; 1 / 4 for features of stride 4.
        sampling_ratio: samples a bin along each axis; zero or less takes one for each cell begun.
        aligned: count cell centres at half-integers (ROIAlignV2), which is right for boxes in
            continuous coordinates. False shifts by half a cell, as the first published models do,
            and makes every box at least one cell long.

    Returns:
        `Tensor[K, C, height, width]` in the type and memory format of `input`. Samples off the map,
        and boxes with a coordinate that is NaN or infinite, count as 0. Boxes get no gradient.

    Raises:
        ValueError: `boxes` or `output_size` has the wrong shape.
        RuntimeError: any other argument is refused by the kernel; the message names it.
    """
    height, width = as_pair(output_size)
    rois = as_rois(boxes, input)
    return _forward(input, rois, spatial_scale, height, width, sampling_ratio, aligned)


class RoIAlign(nn.Module):
    """`roi_align` with everything but the features and boxes fixed."""

    def __init__(
        self,
        output_size: OutputSize,
        spatial_scale: float = 1.0,
        sampling_ratio: int = -1,
        aligned: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = as_pair(output_size)
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned

    def forward(self, input: Tensor, boxes: Boxes) -> Tensor:
        return roi_align(
            input,
            boxes,
            self.output_size,
            self.spatial_scale,
            self.sampling_ratio,
            self.aligned,
        )

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, spatial_scale={self.spatial_scale}, "
            f"sampling_ratio={self.sampling_ratio}, aligned={self.aligned}"
        )


@torch.library.register_fake("detlite::roi_align_forward")
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor:
    return empty_pooled([input], (rois.shape[0], input.shape[1], pooled_height, pooled_width))


@torch.library.register_fake("detlite::roi_align_backward")
def _(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor:
    return empty_map(grad, (batch_size, channels, height, width))


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, rois, *ctx.args = inputs
    ctx.save_for_backward(rois)
    ctx.shape = input.shape
    ctx.channels_last = is_channels_last(input)


def _differentiate_forward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (rois,) = ctx.saved_tensors
    spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned = ctx.args
    grad_input = _backward(
        in_format_of(grad, ctx.channels_last),
        rois,
        spatial_scale,
        pooled_height,
        pooled_width,
        *ctx.shape,
        sampling_ratio,
        aligned,
    )
    return grad_input, None, None, None, None, None, None


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    (
        grad,
        rois,
        spatial_scale,
        pooled_height,
        pooled_width,
        *_,
        sampling_ratio,
        aligned,
    ) = inputs
    ctx.save_for_backward(rois)
    ctx.args = spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned
    ctx.channels_last = is_channels_last(grad)


def _differentiate_backward(ctx: Any, grad_grad: Tensor) -> tuple[Any, ...]:
    # Pooling is linear in the features: the derivative of its transpose is pooling itself.
    (rois,) = ctx.saved_tensors
    pooled = _forward(in_format_of(grad_grad, ctx.channels_last), rois, *ctx.args)
    return pooled, *[None] * 10


torch.library.register_autograd(
    "detlite::roi_align_forward", _differentiate_forward, setup_context=_setup_forward
)
torch.library.register_autograd(
    "detlite::roi_align_backward",
    _differentiate_backward,
    setup_context=_setup_backward,
)
