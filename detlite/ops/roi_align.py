"""RoIAlign (He et al., Mask R-CNN, 2017, section 3) on one map or over a feature pyramid.

`csrc/cpu/roi_align.cpp` defines it in scalar code.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .checks import FLOATING, check_tensors
from .dispatch import compute_dtype, operator, refuse_second_derivative
from .roi_utils import (
    Boxes,
    OutputSize,
    as_pair,
    empty_maps,
    empty_pooled,
    pooling_arguments,
    rois_by_level,
    save_pooling,
    zero_grads,
)

_MAX_SAMPLES = 1 << 22  # torchvision's CPU kernel stores 40 bytes for each sample of a RoI
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


# ---- The operators, and their fallbacks: torchvision's operator, one level at a time


def _pooled_shape(inputs: list[Tensor], rois: Tensor, *others: Any) -> Tensor:
    _levels, _scales, height, width, *_ = others
    return empty_pooled(inputs, (rois.shape[0], inputs[0].shape[1], height, width))


def _map_shapes(grad: Tensor, *args: Any) -> list[Tensor]:
    return empty_maps(grad, *args[5:9])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    dense = grad.contiguous(memory_format=ctx.memory_format)
    arguments = *ctx.saved_tensors, *ctx.args, *ctx.options
    return torch.ops.detlite.roi_align_backward.maps(dense, *arguments), *[None] * 7


@operator("roi_align_forward.maps", "torchvision", _pooled_shape, _differentiate, save_pooling)
def _forward(
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


@operator("roi_align_backward.maps", "torchvision", _map_shapes, refuse_second_derivative)
def _backward(
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
    wide_grad, grads = zero_grads(grad, batch_size, channels, heights, widths)
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
