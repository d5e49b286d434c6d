"""Peaks of heat maps in plain torch: maps enlarged some rows at a time.

Positions and weights are those of csrc/heatmap_peaks.h, operation by operation.

Shapes: r maps of a chunk, each of a box of its own, with H x W cells; h x w pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check, check_floating, check_same_device, check_shape
from .windows import rounded_up

_MOST_CELLS = 1 << 10
_MOST_PIXELS = 1 << 12
# How many numbers a chunk holds at once: 16 MB, and a few times that on the way.
_MOST_NUMBERS = 1 << 22


@dataclass(frozen=True)
class _Axis:
    """One side of the boxes of r maps.

    Attributes:
        low, pixel: [r], where it begins and how long a pixel is.
        pixels: int64 [r].
    """

    low: Tensor
    pixel: Tensor
    pixels: Tensor

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> _Axis:
        """From where to where it goes."""
        side = high - low
        side = torch.where(side < 1, 1, side)
        pixels = side.ceil().clamp(max=_MOST_PIXELS)
        pixels = torch.where(side.isfinite(), pixels, 1)
        return cls(low, side / pixels, pixels.long())

    def select(self, boxes: Tensor) -> _Axis:
        """Some of the boxes."""
        return _Axis(self.low[boxes], self.pixel[boxes], self.pixels[boxes])

    def centre(self, pixel: Tensor) -> Tensor:
        """Of one pixel of each, int64 [r]."""
        return self.low + (pixel.to(self.low.dtype) + 0.5) * self.pixel

    def samples(self, first: int, count: int, cells: int) -> list[tuple[Tensor, Tensor]]:
        """Of each pixel from the first on, the four cells that it lies between, int64 [r, count],
        and their weights."""
        number = torch.arange(first, first + count, device=self.low.device).to(self.low.dtype)
        pixels = self.pixels.to(self.low.dtype)
        scale = torch.full_like(pixels, cells) / pixels  # a number by a tensor has a rounding more
        position = scale[:, None] * (number + 0.5) - 0.5
        below = position.floor()
        t = position - below
        weights = _far(t + 1), _near(t), _near(1 - t), _far(2 - t)
        cell = below.long()
        return [
            ((cell + tap - 1).clamp(0, cells - 1), weight) for tap, weight in enumerate(weights)
        ]


def _near(x: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.75, at a distance of up to one cell."""
    return (1.25 * x - 2.25) * x * x + 1


def _far(x: Tensor) -> Tensor:
    """The same at a distance of one to two cells."""
    return ((-0.75 * x + 3.75) * x - 6) * x + 3


def heatmap_peaks(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel `heatmap_peaks`."""
    _check(maps, boxes)
    shape, each = maps.shape[:2], maps.float().flatten(0, 1)
    x1, y1, x2, y2 = boxes.float().repeat_interleave(shape[1], dim=0).unbind(dim=1)
    rows, columns = _Axis.of(y1, y2), _Axis.of(x1, x2)
    row, column = torch.zeros_like(rows.pixels), torch.zeros_like(columns.pixels)
    scores = torch.zeros_like(rows.low)
    for chosen, size in _chunks(rows.pixels, columns.pixels, maps.shape[2]):
        own = rows.select(chosen), columns.select(chosen)
        scores[chosen], row[chosen], column[chosen] = _highest(each[chosen], *own, size)
    # Infinity times a weight of zero is NaN too.
    sound = each.flatten(1).isfinite().all(dim=1)
    scores = torch.where(sound, scores, torch.nan)
    x, y = columns.centre(torch.where(sound, column, 0)), rows.centre(torch.where(sound, row, 0))
    return torch.stack([x, y, torch.ones_like(x)], dim=1).view(*shape, 3), scores.view(shape)


def _chunks(rows: Tensor, columns: Tensor, cells: int) -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """Numbers int64 [r] of maps with about as many pixels, and what they have at most, in bounded
    memory. Waits for the device once."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, (high, wide) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        groups.setdefault((rounded_up(high), rounded_up(wide)), []).append(number)
    for size, members in groups.items():
        count = max(1, _MOST_NUMBERS // (cells * size[1]))
        for part in range(0, len(members), count):
            yield torch.tensor(members[part : part + count]).to(rows.device), size


def _highest(
    maps: Tensor, rows: _Axis, columns: _Axis, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The highest pixel of each map [r, H, W]: its value [r], and its row and column int64 [r]."""
    high, wide = size
    stretched = _blend(maps.mT, columns.samples(0, wide, maps.shape[2])).mT
    best = maps.new_full((len(maps),), -torch.inf)
    row, column = torch.zeros_like(rows.pixels), torch.zeros_like(rows.pixels)
    inside = torch.arange(wide, device=maps.device) < columns.pixels[:, None, None]
    step = max(1, _MOST_NUMBERS // (len(maps) * wide))
    for first in range(0, high, step):
        count = min(step, high - first)
        values = _blend(stretched, rows.samples(first, count, maps.shape[1]))
        number = torch.arange(first, first + count, device=maps.device)[:, None]
        there = inside & (number < rows.pixels[:, None, None])
        highest, place = torch.where(there, values, -torch.inf).flatten(1).max(dim=1)
        # The first of equals: in a block torch's maximum is, and a later block's must be higher.
        higher = highest > best
        best = torch.where(higher, highest, best)
        row = torch.where(higher, first + place // wide, row)
        column = torch.where(higher, place % wide, column)
    return best, row, column


def _blend(lines: Tensor, samples: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Lines [r, H, w] interpolated between: [r, h, w] for samples [r, h]."""
    a, b, c, d = (
        weight[:, :, None] * lines.gather(1, cell[:, :, None].expand(-1, -1, lines.shape[2]))
        for cell, weight in samples
    )
    return a + b + c + d


def _check(maps: Tensor, boxes: Tensor) -> None:
    op, shape = "heatmap_peaks", list(maps.shape)
    check(len(shape) == 4, f"{op}: maps must have shape [R, N, M, M], got {shape}")
    check(
        all(1 <= side <= _MOST_CELLS for side in shape[2:]),
        f"{op}: maps must have sides from 1 to {_MOST_CELLS}, got {shape}",
    )
    check_shape(op, "boxes", boxes, [shape[0], 4], ", one for each of maps")
    check_floating(op, "maps", maps)
    check_floating(op, "boxes", boxes)
    check_same_device(op, maps, boxes=boxes)
