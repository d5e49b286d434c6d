"""RoIPool (Girshick, Fast R-CNN, 2015, section 2.1) on one map or over a feature pyramid."""

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

torch.fx.wrap("roi_pool")  # one node of a torch.fx graph


def roi_pool(
    input: Tensor, boxes: Boxes, output_size: OutputSize, spatial_scale: float = 1.0
) -> Tensor:
    """Pool the features of each box to a fixed size by the maximum of each bin.

    See `roi_align` for arguments, result and errors. Scaled boxes are rounded to whole cells,
    the last one included. Bins without a cell on the map are 0. A NaN is larger than any number.
    """
    return pyramid_roi_pool([input], boxes, output_size, [spatial_scale])


def pyramid_roi_pool(
    inputs: Sequence[Tensor],
    boxes: Boxes,
    output_size: OutputSize,
    spatial_scales: Sequence[float],
    levels: Tensor | None = None,
) -> Tensor:
    """Apply `roi_pool` to each box on its own pyramid level; arguments as `pyramid_roi_align`."""
    pool = pooling_arguments("roi_pool", inputs, boxes, output_size, spatial_scales, levels)
    need_argmax = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    output, _ = torch.ops.detlite.roi_pool_forward.maps(*pool, need_argmax)
    return output


class RoIPool(nn.Module):
    """`roi_pool` as a module: everything but the features and boxes is fixed."""

    def __init__(self, output_size: OutputSize, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size = as_pair(output_size)
        self.spatial_scale = spatial_scale

    def forward(self, input: Tensor, boxes: Boxes) -> Tensor:
        return roi_pool(input, boxes, self.output_size, self.spatial_scale)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, spatial_scale={self.spatial_scale}"


# ---- Declaration of the operators


def _pooled_shapes(inputs: list[Tensor], rois: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    _levels, _scales, height, width, need_argmax = others
    shape = (rois.shape[0], inputs[0].shape[1], height, width)
    no_argmax = inputs[0].new_empty((0,), dtype=torch.int32)
    argmax = empty_pooled(inputs, shape, torch.int32) if need_argmax else no_argmax
    if need_argmax and argmax.is_cuda:  # the format that the CUDA gradient reads
        argmax = argmax.contiguous(memory_format=torch.channels_last)
    return empty_pooled(inputs, shape), argmax


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    maps, rois, levels, *ctx.args, _ = inputs
    ctx.save_for_backward(rois, levels, output[1])
    ctx.sizes = map_sizes(maps)
    ctx.memory_format = memory_format(maps)


def _differentiate_forward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    dense = grad.contiguous(memory_format=ctx.memory_format)
    arguments = *ctx.saved_tensors, *ctx.args, *ctx.sizes
    return torch.ops.detlite.roi_pool_backward.maps(dense, *arguments), *[None] * 6


def _map_shapes(grad: Tensor, *args: Any) -> list[Tensor]:
    return empty_maps(grad, *args[-4:])


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[1:4])


def _differentiate_backward(ctx: Any, grad_grads: list[Tensor]) -> tuple[Any, ...]:
    # The gradient adds each pooled value to its argmax cell; its derivative reads these cells.
    return _read_argmax(grad_grads, *ctx.saved_tensors), *[None] * 10


def _read_argmax(maps: Sequence[Tensor], rois: Tensor, levels: Tensor, argmax: Tensor) -> Tensor:
    """Return the features at the argmax cells (row * W_l + column), 0 where argmax is -1."""
    image = rois[:, 0].long()[:, None, None, None]
    channel = torch.arange(argmax.shape[1], device=argmax.device)[None, :, None, None]
    pooled = maps[0].new_zeros(argmax.shape)
    for level, features in enumerate(maps):
        if features.numel() == 0:
            continue
        width = features.shape[3]
        here = (levels == level)[:, None, None, None] & (argmax >= 0)
        # Padding has image -1 and reads the last image; torch.where drops the values.
        cell = torch.where(here, argmax, 0).long()
        values = features[image, channel, cell // width, cell % width]
        pooled = torch.where(here, values, pooled)
    return pooled


declare(
    "roi_pool_forward.maps",
    fallback="roi_pool.forward",
    runs_on="torchvision",
    shapes=_pooled_shapes,
    gradient=(_save_forward, _differentiate_forward),
)
declare(
    "roi_pool_backward.maps",
    fallback="roi_pool.backward",
    runs_on="torchvision",
    shapes=_map_shapes,
    gradient=(_save_backward, _differentiate_backward),
)


# ---- For one map, with the arguments of maskrcnn-benchmark's _C


@composite("roi_pool_forward")
def _(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool = True,
) -> tuple[Tensor, Tensor]:
    pool = on_one_level(rois), [spatial_scale], pooled_height, pooled_width
    return torch.ops.detlite.roi_pool_forward.maps([input], rois, *pool, need_argmax)


@composite("roi_pool_backward")
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
    pool = on_one_level(rois), argmax, [spatial_scale], pooled_height, pooled_width
    sizes = batch_size, channels, [height], [width]
    return torch.ops.detlite.roi_pool_backward.maps(grad, rois, *pool, *sizes)[0]
