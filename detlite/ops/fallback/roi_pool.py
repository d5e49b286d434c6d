"""RoIPool in plain torch: of each bin all its cells, and the largest of them.

The geometry is that of csrc/roi_pool_geometry.h, operation by operation.

Shapes: K RoIs of a call, k of a chunk, P x Q bins, C channels, y x x cells of the largest bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.ops.roi_utils import empty_pooled

from .checks import (
    check_dtype,
    check_maps,
    check_pool,
    check_rois,
    check_same_device,
    check_scales,
    check_shape,
    wide,
)
from .windows import as_cells, as_map, cells_of, chunks, of_each


@dataclass(frozen=True)
class _Axis:
    """One axis of K RoIs: the cells int64 [K, bins] from `begin` to before `end` of each bin."""

    begin: Tensor
    end: Tensor

    @property
    def longest(self) -> Tensor:
        """int64 [K], the most cells of a bin."""
        return (self.end - self.begin).clamp(min=0).amax(dim=1)

    def cells(self, rois: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """int64 and bool [k, bins, count]: cells, and whether they are the bin's."""
        cells = self.begin[rois, :, None] + torch.arange(count, device=rois.device)
        return cells, cells < self.end[rois, :, None]


def _axis(low: Tensor, high: Tensor, scale: Tensor, size: Tensor, bins: int) -> _Axis:
    start, last = _rounded(low * scale), _rounded(high * scale)
    length = last - start + 1
    length = torch.where(length < 1, 1, length)
    finite = (start.isfinite() & last.isfinite() & length.isfinite())[:, None]
    bin_size, start, size = (length / bins)[:, None], start[:, None], size[:, None]
    numbers = torch.arange(bins, device=low.device).to(low.dtype)

    def clipped(cell: Tensor) -> Tensor:
        return torch.where(finite, cell.clamp(min=0).minimum(size), 0).long()

    return _Axis(
        clipped((numbers * bin_size).floor() + start),
        clipped(((numbers + 1) * bin_size).ceil() + start),
    )


def _rounded(x: Tensor) -> Tensor:
    """Halves away from zero, as C's round; torch's goes to the even number."""
    whole = x.trunc()
    return torch.where((x - whole).abs() >= 0.5, whole + x.sign(), whole)


def roi_pool_forward(
    inputs: Sequence[Tensor],
    rois: Tensor,
    levels: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    need_argmax: bool,
) -> tuple[Tensor, Tensor]:
    """The kernel `roi_pool_forward.maps`."""
    op, pool = "roi_pool_forward", (pooled_height, pooled_width)
    check_pool(op, *pool)
    check_maps(op, inputs, spatial_scales)
    check_rois(op, inputs[0], rois, levels)
    channels = inputs[0].shape[1]
    output = empty_pooled(inputs, (len(rois), channels, *pool)).zero_()
    argmax = empty_pooled(inputs, output.shape, torch.int32).fill_(-1)
    shapes = [(len(x), x.shape[2], x.shape[3]) for x in inputs]
    _, x1, y1, x2, y2 = rois.unbind(dim=1)
    scale = of_each(levels, spatial_scales, rois.dtype)
    high, broad = (of_each(levels, [s[side] for s in shapes], rois.dtype) for side in (1, 2))
    down, along = _axis(y1, y2, scale, high, pool[0]), _axis(x1, x2, scale, broad, pool[1])
    tables = [as_cells(x) for x in inputs]
    bins = pool[0] * pool[1]
    for chunk in chunks(op, rois, levels, shapes, channels * bins, [down.longest, along.longest]):
        y, x = chunk.numbers
        shape = shapes[chunk.level]
        (rows, in_rows), (columns, in_columns) = (
            down.cells(chunk.rois, y),
            along.cells(chunk.rois, x),
        )
        cells = cells_of(chunk.image, rows.flatten(1), columns.flatten(1), shape)
        window = tables[chunk.level].index_select(0, cells)
        window = window.view(len(rows), pool[0], y, pool[1], x, channels).permute(0, 5, 1, 3, 2, 4)
        inside = in_rows[:, :, None, :, None] & in_columns[:, None, :, None, :]  # [k, P, Q, y, x]
        window = torch.where(inside[:, None], window, -torch.inf).flatten(4)
        # The first of equals, and a NaN before any number.
        largest, place = window.max(dim=4)
        some = inside.flatten(3).any(dim=3)[:, None]
        row = rows[:, None, :, None, 0] + place // x
        column = columns[:, None, None, :, 0] + place % x
        output[chunk.rois] = torch.where(some, largest, 0)
        argmax[chunk.rois] = torch.where(some, row * shape[2] + column, -1).int()
    return output, argmax if need_argmax else argmax.new_empty(0)


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
    """The kernel `roi_pool_backward.maps`: each bin's gradient goes to the cell that won it."""
    op = "roi_pool_backward"
    check_pool(op, pooled_height, pooled_width)
    check_scales(op, spatial_scales)
    check_rois(op, grad, rois, levels)
    check_shape(op, "grad", grad, [len(rois), channels, pooled_height, pooled_width])
    check_dtype(op, "argmax", argmax, torch.int32)
    check_shape(op, "argmax", argmax, list(grad.shape))
    check_same_device(op, grad, argmax=argmax)
    shapes = [(batch_size, *size) for size in zip(heights, widths, strict=True)]
    dtype = wide(grad.dtype)
    tables = [
        torch.zeros(n * h * w, channels, dtype=dtype, device=grad.device) for n, h, w in shapes
    ]
    # Of a RoI its bins, by which the memory grows.
    size = [torch.full_like(levels, x) for x in (pooled_height, pooled_width)]
    channel = torch.arange(channels, device=grad.device)[:, None, None]
    for chunk in chunks(op, rois, levels, shapes, channels, size):
        _, height, width = shapes[chunk.level]
        won = argmax[chunk.rois].long()
        cell = chunk.image[:, None, None, None] * (height * width) + won.clamp(min=0)
        place = (cell * channels + channel).flatten()
        values = torch.where(won >= 0, grad[chunk.rois], 0).to(dtype).flatten()
        if height * width:
            tables[chunk.level].view(-1).index_add_(0, place, values)
    return [as_map(table, shape, grad) for table, shape in zip(tables, shapes, strict=True)]
