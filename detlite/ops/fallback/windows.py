"""What plain RoIAlign and RoIPool share: RoIs in groups that read windows of one size.

Shapes: K RoIs of a call, k of a chunk, C channels, H x W cells of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detlite.ops.roi_utils import memory_format

from .checks import check

# How many features a chunk holds at once: 64 MB in float32.
_MOST_FEATURES = 1 << 24


@dataclass(frozen=True)
class Chunk:
    """RoIs of one level, with windows of one size.

    Attributes:
        level: which map.
        rois: int64 [k], their numbers.
        image: int64 [k].
        numbers: the largest of each of the numbers that `chunks` was given.
    """

    level: int
    rois: Tensor
    image: Tensor
    numbers: list[int]


def chunks(
    op: str,
    rois: Tensor,
    levels: Tensor,
    maps: Sequence[tuple[int, int, int]],
    channels: int,
    numbers: Sequence[Tensor],
) -> Iterator[Chunk]:
    """Chunks of the RoIs that touch their map, in bounded memory. Waits for the device once.

    Args:
        rois, levels: [K, 5] and [K].
        maps: (batch size, height, width) of each level.
        channels: C, with which a chunk's memory grows.
        numbers: int64 [K] each: height and width of a window in cells, by which RoIs are put
            together, then any others. A RoI with a window of no cells is left out.

    Raises:
        RuntimeError: an image or a level that there is not.
    """
    if not len(rois):
        return
    batch_size = maps[0][0]
    image = rois[:, 0]
    inside = (image >= 0) & (image < batch_size)
    image = torch.where(image == -1, -1, torch.where(inside, image, -2)).long()
    groups: dict[tuple[int, int, int], list[int]] = {}
    rows = torch.stack([image, levels, *numbers], dim=1).tolist()
    for number, (of, level, height, width, *_) in enumerate(rows):
        if of == -1:  # padding, at any level
            continue
        check(of >= 0, f"{op}: rois[{number}, 0] is no index of a batch of {batch_size} images")
        check(
            0 <= level < len(maps),
            f"{op}: levels[{number}] is {level}, but there are {len(maps)} maps",
        )
        if height and width:
            group = level, rounded_up(height), rounded_up(width)
            groups.setdefault(group, []).append(number)
    for (level, height, width), members in groups.items():
        size = max(1, _MOST_FEATURES // max(1, height * width * channels))
        for start in range(0, len(members), size):
            part = members[start : start + size]
            chosen = torch.tensor(part).to(rois.device)
            others = [max(column) for column in zip(*(rows[n][4:] for n in part), strict=True)]
            yield Chunk(level, chosen, image[chosen], [height, width, *others])


def rounded_up(cells: int) -> int:
    """To 1, 2, 3, 4, 6, 8, 12, 16, ...: few sizes, none half empty."""
    step = 1 << max((cells - 1).bit_length() - 2, 0)
    return -(-cells // step) * step


def as_cells(features: Tensor) -> Tensor:
    """A map [N, C, H, W] as [N * H * W, C]; no copy where channels lie innermost."""
    return features.permute(0, 2, 3, 1).flatten(0, 2)


def as_map(cells: Tensor, shape: tuple[int, int, int], like: Tensor) -> Tensor:
    """Cells [N * H * W, C] as a map in the type and memory format of `like`."""
    maps = cells.view(*shape, cells.shape[1]).permute(0, 3, 1, 2).to(like.dtype)
    return maps.contiguous(memory_format=memory_format([like]))


def cells_of(image: Tensor, rows: Tensor, columns: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Where `as_cells` has the cells of windows.

    Args:
        image: int64 [k].
        rows, columns: int64 [k, y] and [k, x]; what is off the map is taken at its edge.
        shape: (batch size, height, width).

    Returns:
        int64 [k * y * x].
    """
    _, height, width = shape
    rows = image[:, None] * height + rows.clamp(0, height - 1)
    return (rows[:, :, None] * width + columns.clamp(0, width - 1)[:, None]).flatten()


def of_each(levels: Tensor, values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """The value [K] of each RoI's level; that of the nearest level where there is none."""
    table = torch.tensor(values, dtype=dtype).to(levels.device)
    return table[levels.clamp(0, len(values) - 1)]
