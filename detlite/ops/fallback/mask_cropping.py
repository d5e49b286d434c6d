"""Masks cropped to boxes in plain torch: polygons are drawn on a box's cells; of run lengths the
pixels under a box are looked up, and averaged by RoIAlign's matrices.

Shapes: R boxes, k of a chunk; M x M cells of a box, y x x pixels of a window.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .checks import check, check_dtype, check_floating, check_same_device, check_shape
from .polygons import draw_polygons
from .roi_align import align_axis
from .segments import count_up_to, ranges
from .windows import chunks

_OP = "crop_masks"
_MOST_CELLS = 256
# In pixels: of a frame, and of the network's input.
_LONGEST_SOURCE, _LONGEST_TARGET = 1 << 30, 1 << 15


class _Masks(NamedTuple):
    """The fields of `PackedMasks`."""

    values: Tensor
    pieces: Tensor
    instances: Tensor
    frames: Tensor


def crop_masks(
    values: Tensor,
    pieces: Tensor,
    instances: Tensor,
    frames: Tensor,
    index: Tensor,
    boxes: Tensor,
    resolution: int,
    soft: bool,
) -> Tensor:
    """The kernel `crop_masks`.

    Masks that are on the CPU, as the device has no float64, are cropped there.
    """
    masks = _Masks(values, pieces, instances, frames)
    if values.device.type == "cpu" and boxes.device.type != "cpu":
        crops = torch.ops.detlite.crop_masks(*masks, index.cpu(), boxes.cpu(), resolution, soft)
        return crops.to(boxes.device)
    _check(masks, index, boxes, resolution)
    _check_contents(masks, index, soft)
    boxes = boxes.float()
    crops = boxes.new_zeros(len(boxes), resolution, resolution)
    (chosen,) = (index >= 0).nonzero(as_tuple=True)
    own = index[chosen]
    some = instances[own + 1] > instances[own]
    in_runs = frames[own, 0] != 0
    drawn, read = chosen[some & ~in_runs], chosen[some & in_runs]
    outlines = values, pieces, instances
    crops[drawn] = draw_polygons(*outlines, index[drawn], boxes[drawn], resolution).to(crops.dtype)
    crops[read] = _read_runs(masks, index[read], boxes[read], resolution, soft)
    return crops


def _read_runs(masks: _Masks, index: Tensor, boxes: Tensor, resolution: int, soft: bool) -> Tensor:
    """float32 [R, M, M] of instances that are run lengths."""
    crops = boxes.new_zeros(len(boxes), resolution, resolution)
    frames, piece = masks.frames[index], masks.instances[index]
    begin, end = masks.pieces[piece], masks.pieces[piece + 1]
    out_height, out_width = frames[:, 4:].to(boxes.dtype).unbind(dim=1)
    x1, y1, x2, y2 = boxes.unbind(dim=1)
    rows = align_axis(y1, y2, 1.0, out_height, resolution, 0, not soft)
    columns = align_axis(x1, x2, 1.0, out_width, resolution, 0, not soft)
    numbers = [rows.count, columns.count, rows.near, columns.near]
    one_map = torch.zeros_like(index)
    for chunk in chunks(_OP, pad(boxes, (1, 0)), one_map, [(1, 0, 0)], 1, numbers):
        own = chunk.rois
        high, wide, near_rows, near_columns = chunk.numbers
        cells = rows.begin[own], high, columns.cells(own, wide)
        inside = _pixels(masks.values, begin[own], end[own], frames[own], *cells)
        down = rows.weights(own, high, near_rows)
        along = columns.weights(own, wide, near_columns)
        crops[own] = down @ inside.to(crops.dtype) @ along.mT
    return crops if soft else (crops >= 0.5).to(crops.dtype)


def _pixels(
    values: Tensor, begin: Tensor, end: Tensor, frames: Tensor, top: Tensor, high: int, x: Tensor
) -> Tensor:
    """int32 [k, y, x] of 0 and 1: pixels of the network's input.

    Args:
        values: all toggles; a box's are those from `begin` to before `end`, int64 [k].
        frames: int64 [k, 6], see `PackedMasks`.
        top, high: int64 [k], the first row; and how many rows.
        x: int64 [k, x], which columns; one beyond the last stands for that.
    """
    height, width, flip_x, flip_y, out_height, out_width = frames[:, :, None].unbind(dim=1)
    source = (2 * x.minimum(out_width - 1) + 1) * width // (2 * out_width)
    source = torch.where(flip_x != 0, width - 1 - source, source)
    start = source * height  # [k, x], where a column begins
    ends = torch.stack([start, start + height], dim=1) - 1  # of the column before, and of this
    before, through = count_up_to(values, begin, end, ends.to(values.dtype)).unbind(dim=1)
    first = begin[:, None] + before
    column, toggle = ranges(first.flatten(), (first + (through - before).clamp(min=0)).flatten())
    box = column // x.shape[1]

    # The rows from a toggle on change. Mirrored, those before it do, which is as if the others did,
    # and all rows once more.
    row = (values[toggle] - start.flatten()[column]).ceil().long()
    height, out_height, flip_y = height[box, 0], out_height[box, 0], flip_y[:, 0]
    row = torch.where(flip_y[box] != 0, height - row, row)
    # The first row of the input that reads this row or a later one, (2y + 1) * height // (2 * out).
    edge = -((height - 2 * out_height * row) // (2 * height)) - top[box]
    changes = torch.zeros(len(x), high + 1, x.shape[1], dtype=torch.int32, device=x.device)
    place = box, edge.clamp(0, high), column % x.shape[1]
    changes.index_put_(place, torch.ones_like(box, dtype=torch.int32), accumulate=True)
    outside = torch.where(flip_y[:, None] != 0, through, before).int()
    return (outside[:, None] + changes[:, :high].cumsum(1, dtype=torch.int32)) % 2


def _check(masks: _Masks, index: Tensor, boxes: Tensor, resolution: int) -> None:
    values, pieces, instances, frames = masks
    check(values.dim() == 1, f"{_OP}: values must have shape [V], got {list(values.shape)}")
    check_dtype(_OP, "values", values, torch.float64)
    for name, tensor, least in (
        ("pieces", pieces, 1),
        ("instances", instances, 1),
        ("index", index, 0),
    ):
        check(
            tensor.dim() == 1 and len(tensor) >= least,
            f"{_OP}: {name} must have one dimension and at least {least} elements, "
            f"got {list(tensor.shape)}",
        )
        check_dtype(_OP, name, tensor, torch.int64)
    check_shape(_OP, "frames", frames, [len(instances) - 1, 6], ", a row for each of instances")
    check_dtype(_OP, "frames", frames, torch.int64)
    check_shape(_OP, "boxes", boxes, [len(index), 4], ", one for each of index")
    check_floating(_OP, "boxes", boxes)
    check(
        1 <= resolution <= _MOST_CELLS,
        f"{_OP}: resolution must be from 1 to {_MOST_CELLS}, got {resolution}",
    )
    check_same_device(
        _OP, values, pieces=pieces, instances=instances, frames=frames, index=index, boxes=boxes
    )


def _check_contents(masks: _Masks, index: Tensor, soft: bool) -> None:
    """Refuses offsets, frames and indices that are wrong. Waits for the device."""
    values, pieces, instances, frames = masks
    ends, firsts = pieces.tolist(), instances.tolist()
    _check_offsets("pieces", ends, len(values), "values")
    _check_offsets("instances", firsts, len(pieces) - 1, "pieces")
    for i, ((first, last), frame) in enumerate(zip(pairwise(firsts), frames.tolist(), strict=True)):
        if first == last:
            continue
        if frame[0] == 0:
            check(not soft, f"{_OP}: instance {i} is polygons, and soft masks need run lengths")
            for piece in range(first, last):
                check(
                    (ends[piece + 1] - ends[piece]) % 2 == 0,
                    f"{_OP}: piece {piece} must have an x and a y for each corner, got an odd "
                    "number of values",
                )
            continue
        check(
            last - first == 1,
            f"{_OP}: instance {i} is run lengths and must have one piece, got {last - first}",
        )
        check(
            all(1 <= side <= _LONGEST_SOURCE for side in frame[:2])
            and all(1 <= side <= _LONGEST_TARGET for side in frame[4:]),
            f"{_OP}: frames[{i}] must have sides from 1 to {_LONGEST_SOURCE}, and from 1 to "
            f"{_LONGEST_TARGET} in the network's input",
        )
    count = len(instances) - 1
    for i, which in enumerate(index.tolist()):
        check(-1 <= which < count, f"{_OP}: index[{i}] is {which}, but there are {count} instances")


def _check_offsets(name: str, offsets: list[int], most: int, of: str) -> None:
    for i, (before, offset) in enumerate(pairwise([0, *offsets])):
        check(
            before <= offset <= most,
            f"{_OP}: {name} must increase from 0 to the {most} {of}, got {offset} at place {i}",
        )
