"""RoIAlign (He et al., Mask R-CNN, 2017, section 3) on one map or over a feature pyramid.

`csrc/cpu/roi_align.cpp` defines it in scalar code.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .dispatch import composite, declare
from .roi_utils import (
    Boxes,
    OutputSize,
    as_pair,
    empty_maps,
    empty_pooled,
    map_sizes,
    memory_format,
    on_one_level,
    pooling_arguments,
)

torch.fx.wrap("roi_align")  # one node of a torch.fx graph


def roi_align(
    input: Tensor,
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Pool the features of each box to a fixed size by averaging bilinear samples.

    Args:
        input: features `[N, C, H, W]`; see `detlite.ops.roi_utils` about precision.
        boxes: `[K, 5]` of (batch index, x1, y1, x2, y2), or a list with one `[L, 4]` tensor per
            image, in coordinates of the input image. Batch index -1 is padding.
        output_size: height and width of the pooled features, or one number for both.
        spatial_scale: feature cells per pixel of the image: 1 / stride.
        sampling_ratio: samples per bin and axis; with 0 or less, one for each cell in the bin.
        aligned: cell centers are at half-integers (ROIAlignV2), as continuous coordinates need.
            False shifts by half a cell, as in the first published models, and makes every box at
            least one cell long.

    Returns:
        `[K, C, height, width]` in the type and memory format of `input`. Samples outside the map
        are 0, as are padding and boxes with a NaN or infinite coordinate. Boxes have no gradient.

    Raises:
        ValueError: `boxes` or `output_size` has the wrong shape.
        RuntimeError: another argument is invalid; the message names it.
    """
    return pyramid_roi_align([input], boxes, output_size, [spatial_scale], sampling_ratio, aligned)


def pyramid_roi_align(
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    levels: Tensor | None = None,
) -> Tensor:
    """Apply `roi_align` to each box on its own level of a feature pyramid, in one call.

    Args:
        inputs: one `[N, C, H_l, W_l]` map per level, at most 8, with the same type, batch size and
            number of channels.
        boxes, output_size, sampling_ratio, aligned: as for `roi_align`.
        spatial_scales: 1 / stride of each level.
        levels: int64 `[K]`, the level of each box, any number for padding. None: the result of
            `assign_levels`, which needs the finest level first.

    Returns:
        `[K, C, height, width]` as from `roi_align`, in the order of the boxes.

    Raises:
        ValueError: `boxes` or `output_size` has the wrong shape, or from `assign_levels`.
        RuntimeError: another argument is invalid; the message names it. An unknown level is
            reported like a wrong batch index, see `detlite.ops.roi_utils`.
    """
    pool = pooling_arguments("roi_align", inputs, boxes, output_size, spatial_scales, levels)
    return torch.ops.detlite.roi_align_forward.maps(*pool, sampling_ratio, aligned)


class RoIAlign(nn.Module):
    """`roi_align` as a module: everything but the features and boxes is fixed."""

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
        size, scale = self.output_size, self.spatial_scale
        return roi_align(input, boxes, size, scale, self.sampling_ratio, self.aligned)

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, spatial_scale={self.spatial_scale}, "
            f"sampling_ratio={self.sampling_ratio}, aligned={self.aligned}"
        )


# ---- Declaration of the operators


def _pooled_shape(inputs: list[Tensor], rois: Tensor, *others: Any) -> Tensor:
    _levels, _scales, height, width, *_ = others
    return empty_pooled(inputs, (rois.shape[0], inputs[0].shape[1], height, width))


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    maps, rois, levels, *ctx.args = inputs
    ctx.save_for_backward(rois, levels)
    ctx.sizes = map_sizes(maps)
    ctx.memory_format = memory_format(maps)


def _differentiate_forward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scales, height, width, *sampling = ctx.args
    dense = grad.contiguous(memory_format=ctx.memory_format)
    arguments = [*ctx.saved_tensors, scales, height, width, *ctx.sizes, *sampling]
    return torch.ops.detlite.roi_align_backward.maps(dense, *arguments), *[None] * 7


def _map_shapes(grad: Tensor, *args: Any) -> list[Tensor]:
    return empty_maps(grad, *args[5:9])


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    grad, rois, levels, scales, height, width, _, _, _, _, *sampling = inputs
    ctx.save_for_backward(rois, levels)
    ctx.args = scales, height, width, *sampling
    ctx.memory_format = memory_format([grad])


def _differentiate_backward(ctx: Any, grad_grads: list[Tensor]) -> tuple[Any, ...]:
    # Pooling is linear in the features, so the derivative of its transpose is pooling itself.
    dense = [x.contiguous(memory_format=ctx.memory_format) for x in grad_grads]
    pooled = torch.ops.detlite.roi_align_forward.maps(dense, *ctx.saved_tensors, *ctx.args)
    return pooled, *[None] * 11


declare(
    "roi_align_forward.maps",
    fallback="roi_align.forward",
    runs_on="torchvision",
    shapes=_pooled_shape,
    gradient=(_save_forward, _differentiate_forward),
)
declare(
    "roi_align_backward.maps",
    fallback="roi_align.backward",
    runs_on="torchvision",
    shapes=_map_shapes,
    gradient=(_save_backward, _differentiate_backward),
)


# ---- For one map, with the arguments of maskrcnn-benchmark's _C


@composite("roi_align_forward")
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor:
    pool = on_one_level(rois), [spatial_scale], pooled_height, pooled_width
    return torch.ops.detlite.roi_align_forward.maps([input], rois, *pool, sampling_ratio, aligned)


@composite("roi_align_backward")
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
    pool = on_one_level(rois), [spatial_scale], pooled_height, pooled_width
    sizes = batch_size, channels, [height], [width]
    maps = torch.ops.detlite.roi_align_backward.maps
    return maps(grad, rois, *pool, *sizes, sampling_ratio, aligned)[0]
