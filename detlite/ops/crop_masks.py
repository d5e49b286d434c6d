"""Training targets of a mask head, from polygons and run lengths, without bitmaps."""

from __future__ import annotations

import torch
from torch import Tensor

from detlite import _C  # noqa: F401  (loads the kernels)


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
    """The part of an instance's mask inside each box, on M x M cells.

    The first four arguments are the fields of `detlite.structures.packed_masks.PackedMasks`, which
    holds I instances of Q pieces (polygons, or run lengths of one mask) with V numbers together.

    Polygons give, to the last cell, what detectron2's `rasterize_polygons_within_box` gives: COCO's
    rasterisation of their union on the box's cells. Corners more than 2^25 / 5 cells from the
    box's corner are taken as that far out, NaN as far out on the low side.

    Run lengths give what RoIAlign of the bitmap in the size of the network's input gives on the
    same device, on the CPU to the last bit: the average over each cell of the box, with as many
    samples as the cell has pixels, thresholded at one half. No gradient flows.

    Args:
        values: float64 `[V]`, coordinates x, y, x, y, ... of polygons in pixels of the network's
            input; or the flat positions, column by column, at which a mask in run lengths changes.
        pieces: int64 `[Q + 1]`; piece q is `values[pieces[q]:pieces[q + 1]]`.
        instances: int64 `[I + 1]`; instance i has the pieces `instances[i]` to `instances[i + 1]`.
            One with no pieces is an empty mask.
        frames: int64 `[I, 6]`: (height, width, flip_x, flip_y, out_height, out_width) of run
            lengths, height 0 for polygons.
        index: int64 `[R]`, the instance for each box; -1 for padding, an empty mask.
        boxes: `[R, 4]` of (x1, y1, x2, y2) in pixels of the network's input, anywhere; computed
            with in float32.
        resolution: M, from 1 to 256.
        soft: for run lengths alone: neither threshold the average nor shift it by half a pixel
            (torchvision).

    Returns:
        float32 `[R, M, M]` of 0 and 1; if `soft`, of 0 to 1.

    Raises:
        RuntimeError: an argument is wrong; the message names it. On CUDA the contents of tensors
            are not read for that: offsets are clamped, and an index outside the instances, or
            polygons for soft masks, end the kernel with an error.
    """
    return torch.ops.detlite.crop_masks(
        values, pieces, instances, frames, index, boxes.detach(), resolution, soft
    )


@torch.library.register_fake("detlite::crop_masks")
def _(
    values: Tensor,
    pieces: Tensor,
    instances: Tensor,
    frames: Tensor,
    index: Tensor,
    boxes: Tensor,
    resolution: int,
    soft: bool,
) -> Tensor:
    shape = (boxes.shape[0], resolution, resolution)
    return boxes.new_empty(shape, dtype=torch.float32)
