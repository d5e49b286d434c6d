"""RoIAlign in plain torch: of each RoI a window of the map, times a matrix for each axis.

The average over a bin's samples is a sum over rows of a sum over columns, so a RoI is pooled by two
small matrices. Positions are those of csrc/roi_align_geometry.h, operation by operation.

Shapes: K RoIs of a call, k of a chunk, P x Q bins, C channels, y x x cells of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.ops.roi_utils import empty_pooled

from .checks import check_maps, check_pool, check_rois, check_scales, check_shape, wide
from .windows import Chunk, as_cells, as_map, cells_of, chunks, of_each

_MOST_SAMPLES = 1 << 30
# How many shares of cells in samples there are at once: 16 MB, and a few times that on the way.
_MOST_SHARES = 1 << 22


@dataclass(frozen=True)
class AlignAxis:
    """One axis of K RoIs, in cells.

    Attributes:
        start, bin_size: [K].
        samples: int64 [K], of a bin.
        size: [K], of the map.
        first: int64 [K, bins], the first sample that may be on the map.
        near: int64 [K], the most samples of a bin that may be.
        begin, count: int64 [K], the cells that samples may touch.
    """

    start: Tensor
    bin_size: Tensor
    samples: Tensor
    size: Tensor
    first: Tensor
    near: Tensor
    begin: Tensor
    count: Tensor

    def cells(self, rois: Tensor, count: int) -> Tensor:
        """int64 [k, count], from the first cell on."""
        return self.begin[rois, None] + torch.arange(count, device=rois.device)

    def weights(self, rois: Tensor, count: int, near: int) -> Tensor:
        """How much of each bin each of the cells is: [k, bins, count]."""
        start, bin_size, samples, size = (
            x[rois, None, None] for x in (self.start, self.bin_size, self.samples, self.size)
        )
        first = self.first[rois, :, None]
        cells = self.cells(rois, count)[:, None, None].to(start.dtype)
        bins = torch.arange(first.shape[1], device=rois.device)[:, None].to(start.dtype)
        result = torch.zeros(*first.shape[:2], count, dtype=start.dtype, device=rois.device)
        step = max(1, _MOST_SHARES // max(1, result.numel()))
        for begin in range(0, near, step):
            some = torch.arange(begin, min(begin + step, near), device=rois.device)
            number = first + some  # [k, bins, some]
            position = start + bins * bin_size + (number.to(start.dtype) + 0.5) * bin_size / samples
            counts = (number < samples) & (position >= -1) & (position <= size)
            # What is up to a cell outside the map takes the value of its edge.
            inside = position.clamp(min=0).minimum(size - 1)
            share = (inside[..., None] - cells).abs_().neg_().add_(1).clamp_(min=0)
            result += torch.where(counts[..., None], share, 0).sum(dim=2)
        return result / samples.clamp(min=1)


def align_axis(
    low: Tensor,
    high: Tensor,
    scale: Tensor | float,
    size: Tensor,
    bins: int,
    sampling: int,
    aligned: bool,
) -> AlignAxis:
    """One axis of RoIs as csrc/roi_align_geometry.h has it.

    Args:
        low, high: [K], where RoIs begin and end in pixels, anywhere, or not finite.
        scale: cells to a pixel, [K] or one number.
        size: [K], of the map in cells, in the type of the RoIs.
        bins: how many to cut each RoI into.
        sampling: samples of a bin; 0 or less: one for each cell begun.
        aligned: cell centres lie at half-integers, and RoIs may be shorter than a cell.
    """
    offset = 0.5 if aligned else 0.0
    start = low * scale - offset
    length = high * scale - offset - start
    if not aligned:
        length = torch.where(length < 1, 1, length)
    bin_size = length / bins
    if sampling > 0:
        samples = torch.full_like(start, sampling).long()
    else:
        samples = bin_size.ceil().nan_to_num(0).clamp(0, _MOST_SAMPLES).long()
    finite = start.isfinite() & length.isfinite()

    # Positions may be off by a few roundings of the largest term.
    rounding = 4 * torch.finfo(start.dtype).eps
    error = rounding * start.abs() + rounding * length.abs()  # of the largest boxes finite too
    end = start + length
    lowest = (start.minimum(end) - error).floor().clamp(min=0).minimum(size - 1)
    highest = (start.maximum(end) + error).floor().clamp(min=0).minimum(size - 1)
    # The cell after the last position has a part in it.
    count = (highest + 2).minimum(size) - lowest
    count = torch.where(finite & (samples > 0) & (size > 0), count, 0).long()

    # Samples that may be near the map: few of a box that is far larger.
    spacing = (bin_size / samples)[:, None]
    begins = start[:, None] + torch.arange(bins, device=low.device) * bin_size[:, None]
    slack = 2 + error[:, None] / spacing.abs()
    ends = torch.stack([(-1 - begins) / spacing, (size[:, None] - begins) / spacing])
    most = samples[:, None].to(start.dtype)
    at_one_place = bin_size[:, None] == 0
    first = torch.where(at_one_place, 0, ends.amin(dim=0) - slack)
    last = torch.where(at_one_place, most, ends.amax(dim=0) + slack + 1)
    first, last = (x.nan_to_num(0).clamp(min=0).minimum(most).long() for x in (first, last))
    return AlignAxis(
        start,
        bin_size,
        samples,
        size,
        first,
        (last - first).amax(dim=1),
        lowest.nan_to_num(0).long(),
        count,
    )


@dataclass(frozen=True)
class _Plan:
    """All RoIs of a call: their axes, and the maps that they are pooled from."""

    rows: AlignAxis
    columns: AlignAxis
    shapes: list[tuple[int, int, int]]

    def matrices(self, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
        """[k, P, y] and [k, Q, x], and the window's cells int64 [k * y * x]."""
        high, broad, near_rows, near_columns = chunk.numbers
        rows = self.rows.weights(chunk.rois, high, near_rows)
        columns = self.columns.weights(chunk.rois, broad, near_columns)
        where = self.rows.cells(chunk.rois, high), self.columns.cells(chunk.rois, broad)
        return rows, columns, cells_of(chunk.image, *where, self.shapes[chunk.level])

    def numbers(self) -> list[Tensor]:
        """For `chunks`."""
        return [self.rows.count, self.columns.count, self.rows.near, self.columns.near]


def _plan(
    rois: Tensor,
    levels: Tensor,
    scales: Sequence[float],
    shapes: list[tuple[int, int, int]],
    pool: tuple[int, int],
    sampling: int,
    aligned: bool,
) -> _Plan:
    _, x1, y1, x2, y2 = rois.unbind(dim=1)
    scale = of_each(levels, scales, rois.dtype)
    high, broad = (of_each(levels, [s[side] for s in shapes], rois.dtype) for side in (1, 2))
    rows = align_axis(y1, y2, scale, high, pool[0], sampling, aligned)
    columns = align_axis(x1, x2, scale, broad, pool[1], sampling, aligned)
    return _Plan(rows, columns, shapes)


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
    """The kernel `roi_align_forward.maps`."""
    op, pool = "roi_align_forward", (pooled_height, pooled_width)
    check_pool(op, *pool)
    check_maps(op, inputs, spatial_scales)
    check_rois(op, inputs[0], rois, levels)
    channels, dtype = inputs[0].shape[1], wide(inputs[0].dtype)
    output = empty_pooled(inputs, (len(rois), channels, *pool)).zero_()
    shapes = [(len(x), x.shape[2], x.shape[3]) for x in inputs]
    plan = _plan(rois, levels, spatial_scales, shapes, pool, sampling_ratio, aligned)
    tables = [as_cells(x) for x in inputs]
    for chunk in chunks(op, rois, levels, shapes, channels, plan.numbers()):
        rows, columns, cells = plan.matrices(chunk)
        window = tables[chunk.level].index_select(0, cells).to(dtype)
        count, high, broad = len(rows), rows.shape[2], columns.shape[2]
        sums = rows @ window.view(count, high, broad * channels)
        pooled = columns[:, None] @ sums.view(count, pool[0], broad, channels)
        output[chunk.rois] = pooled.permute(0, 3, 1, 2).to(output.dtype)
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
    """The kernel `roi_align_backward.maps`: the matrices transposed, the windows added up."""
    op, pool = "roi_align_backward", (pooled_height, pooled_width)
    check_pool(op, *pool)
    check_scales(op, spatial_scales)
    check_rois(op, grad, rois, levels)
    check_shape(op, "grad", grad, [len(rois), channels, *pool])
    shapes = [(batch_size, *size) for size in zip(heights, widths, strict=True)]
    dtype = wide(grad.dtype)
    plan = _plan(rois, levels, spatial_scales, shapes, pool, sampling_ratio, aligned)
    tables = [
        torch.zeros(n * h * w, channels, dtype=dtype, device=grad.device) for n, h, w in shapes
    ]
    for chunk in chunks(op, rois, levels, shapes, channels, plan.numbers()):
        rows, columns, cells = plan.matrices(chunk)
        count, broad = len(rows), columns.shape[2]
        pooled = grad[chunk.rois].permute(0, 2, 3, 1).to(dtype)
        sums = columns.mT[:, None] @ pooled
        window = rows.mT @ sums.reshape(count, pool[0], broad * channels)
        tables[chunk.level].index_add_(0, cells, window.view(len(cells), channels))
    return [as_map(table, shape, grad) for table, shape in zip(tables, shapes, strict=True)]
