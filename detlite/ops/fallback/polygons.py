"""Polygons drawn on the cells of boxes in plain torch: of each edge the columns that it crosses.

Positions are those of csrc/crop_masks.h, operation by operation, in float64.

Shapes: R boxes, r of a chunk; P pieces of theirs, E edges of these; M x M cells of a box.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .segments import ranges

# A cell has so many steps of the grid that corners are rounded to, as in COCO's rasterisation.
_FINE = 5
# Corners farther out are taken as that far, NaN as far on the low side.
_FARTHEST = float(1 << 25)
# How many numbers a chunk holds at once: 16 MB, and a few times that on the way.
_MOST_NUMBERS = 1 << 22


def draw_polygons(
    values: Tensor, pieces: Tensor, instances: Tensor, index: Tensor, boxes: Tensor, cells: int
) -> Tensor:
    """bool [R, M, M]: the union of an instance's polygons in each box.

    Args:
        values, pieces, instances: as `crop_masks` takes them, the instances meant being polygons.
        index: int64 [R], which instance.
        boxes: float32 [R, 4].
        cells: M.
    """
    drawn = torch.zeros(len(boxes), cells, cells, dtype=torch.bool, device=boxes.device)
    first, last = instances[index], instances[index + 1]
    corners = (pieces[last] - pieces[first]) // 2
    for part in _chunks((corners + (last - first) * (cells + 1)) * cells):
        box, piece = ranges(first[part], last[part])
        own, x, y, before = _corners(values, pieces, piece, boxes[part][box], cells)
        edge, column, row = _crossings((x[before], y[before]), (x, y), cells)
        # Where a column is crossed, the cells from a row on, which may be none, change sides.
        changes = torch.zeros(len(piece), cells, cells + 1, dtype=torch.int32, device=x.device)
        place = (own[edge], column, row)
        changes.index_put_(place, torch.ones_like(row, dtype=torch.int32), accumulate=True)
        inside = changes.cumsum(2, dtype=torch.int32)[..., :cells] % 2
        union = drawn.new_zeros(part.stop - part.start, cells, cells, dtype=torch.int32)
        drawn[part] = union.index_add_(0, box, inside).mT > 0
    return drawn


def _chunks(numbers: Tensor) -> Iterator[slice]:
    """Consecutive boxes that hold so many numbers [R] each. Waits for the device."""
    start, held = 0, 0
    counts = numbers.tolist()
    for i, count in enumerate(counts):
        if i > start and held + count > _MOST_NUMBERS:
            yield slice(start, i)
            start, held = i, 0
        held += count
    if counts:
        yield slice(start, len(counts))


def _corners(
    values: Tensor, pieces: Tensor, piece: Tensor, boxes: Tensor, cells: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Corners of pieces on the fine grids of their boxes [P, 4].

    Returns:
        int64 [E]: to which of the P pieces a corner belongs; float64 [E]: its x and y, whole
        numbers; int64 [E]: which corner is before it.
    """
    begin = pieces[piece]
    count = (pieces[piece + 1] - begin) // 2
    own, corner = ranges(torch.zeros_like(count), count)
    place = begin[own] + 2 * corner
    scale = [_cells_to_pixel(boxes[:, axis + 2] - boxes[:, axis], cells)[own] for axis in (0, 1)]
    x, y = (
        _fine(values[place + axis] - boxes[own, axis].to(values.dtype), scale[axis])
        for axis in (0, 1)
    )
    number = torch.arange(len(own), device=own.device)
    return own, x, y, torch.where(corner == 0, number + count[own], number) - 1


def _cells_to_pixel(side: Tensor, cells: int) -> Tensor:
    """float64, in the types that numpy gives detectron2's rasterize_polygons_within_box."""
    per_pixel = torch.full_like(side, cells) / side  # a number by a tensor has a rounding more
    return torch.where(side < 0.1, cells / 0.1, per_pixel.double())


def _fine(pixels: Tensor, scale: Tensor) -> Tensor:
    fine = _FINE * (pixels * scale) + 0.5
    return torch.where(fine > -_FARTHEST, fine.clamp(max=_FARTHEST), -_FARTHEST).trunc()


def _crossings(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which edges from a to b, both (x, y) float64 [E], cross the middle of which columns, and the
    first row below: int64 each, the row up to M. Waits for the device."""
    middle = _FINE * torch.arange(cells, device=a[0].device) + 2
    low, high = a[0].minimum(b[0])[:, None], a[0].maximum(b[0])[:, None]
    edge, column = ((low <= middle) & (middle + 1 <= high)).nonzero(as_tuple=True)
    u = middle[column].to(low.dtype)
    ax, ay, bx, by = a[0][edge], a[1][edge], b[0][edge], b[1][edge]
    dx, dy = (bx - ax).abs(), (by - ay).abs()
    flat = dx >= dy
    # Edges go right if they are flat, and else down.
    turn = torch.where(flat, ax > bx, ay > by)
    ax, bx = torch.where(turn, bx, ax), torch.where(turn, ax, bx)
    ay, by = torch.where(turn, by, ay), torch.where(turn, ay, by)
    slope = torch.where(flat, (by - ay) / dx, (bx - ax) / dy)
    level = _along(ay, slope, u - ax).minimum(_along(ay, slope, u + 1 - ax))
    v = torch.where(flat, level, ay + _crossing_step(ax, slope, dy, u) - 1)
    row = ((v.long() + 2) // _FINE).clamp(0, cells)
    return edge, column, row


def _along(start: Tensor, slope: Tensor, step: Tensor) -> Tensor:
    """The other coordinate of an edge's point number `step`."""
    return (start + slope * step + 0.5).trunc()


def _crossing_step(start: Tensor, slope: Tensor, steps: Tensor, u: Tensor) -> Tensor:
    """The first step of a steep edge whose point is on the far side of the line between the fine
    columns `u` and `u` + 1, which it crosses; of no meaning for other edges."""

    def crossed(step: Tensor) -> Tensor:
        x = _along(start, slope, step)
        return torch.where(slope > 0, x > u, x <= u)

    step = ((u + 0.5 - start) / slope).trunc().clamp(min=1).minimum(steps)
    # That is off by one, and by one more where the quotient was rounded.
    for _ in range(2):
        step = torch.where((step > 1) & crossed(step - 1), step - 1, step)
    for _ in range(2):
        step = torch.where((step < steps) & ~crossed(step), step + 1, step)
    return step
