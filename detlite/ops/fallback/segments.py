"""Rows of different lengths, one after the other in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def ranges(begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of some ranges, one range after the other. Waits for the device.

    Args:
        begin, end: int64 [R]; range r has the numbers from `begin[r]` to before `end[r]`.

    Returns:
        int64 [N] each: to which range a number belongs, and the number.
    """
    count = end - begin
    row = torch.arange(len(count), device=count.device).repeat_interleave(count)
    shift = begin - (count.cumsum(0) - count)
    return row, torch.arange(len(row), device=row.device) + shift[row]


def count_up_to(values: Tensor, begin: Tensor, end: Tensor, bound: Tensor) -> Tensor:
    """How many of sorted values are no larger than a bound, by bisection. Waits for the device.

    Args:
        values: [V]; of each row those from `begin` to before `end` are meant.
        begin, end: int64 [k].
        bound: [k, ...], any number of bounds for each row.

    Returns:
        int64, of the shape of `bound`.
    """
    shape = (-1, *[1] * (bound.dim() - 1))
    begin = begin.view(shape)
    low, high = begin.expand_as(bound), end.view(shape).expand_as(bound)
    longest = int((high - low).max()) if bound.numel() else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        up = (low < high) & (values[middle.clamp(max=len(values) - 1)] <= bound)
        low, high = torch.where(up, middle + 1, low), torch.where(up, high, middle)
    return low - begin
