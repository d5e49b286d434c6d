"""The best ground truth of each candidate and the best candidates of each ground truth."""

from __future__ import annotations

import torch
from torch import Tensor

from detlite import _C  # noqa: F401  (loads the kernels)


def match_boxes(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matches candidates (anchors, proposals) to ground truth without the [G, N] table of overlaps.

    The overlaps are those of `detlite.structures.boxes.iou`, bit by bit. Memory grows with N + G.
    The result does not depend on the number of threads. A box with a NaN overlaps nothing.

    Args:
        truth: `Tensor[B, G, 4]` of (x1, y1, x2, y2), any floating type; computes in float32.
        valid: bool `Tensor[B, G]`; False where a box of `truth` is padding.
        candidates: `Tensor[N, 4]`, the same for all images, or `Tensor[B, N, 4]`; any floating
            type.

    Returns:
        index: int64 `Tensor[B, N]`, the valid ground truth that the candidate overlaps most, the
            lowest index of equals (also where it overlaps none); -1 where the image has none.
        iou: float32 `Tensor[B, N]`, that overlap, 0 to 1; 0 where the index is -1.
        best: bool `Tensor[B, N]`, whether there is a valid ground truth that no candidate overlaps
            more than this one does, and by more than 0.

    Raises:
        RuntimeError: a shape, type or device is wrong; the message names the argument.
    """
    return torch.ops.detlite.match_boxes(truth, valid, candidates)


@torch.library.register_fake("detlite::match_boxes")
def _(truth: Tensor, valid: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (truth.shape[0], candidates.shape[-2])
    return (
        truth.new_empty(shape, dtype=torch.int64),
        truth.new_empty(shape, dtype=torch.float32),
        truth.new_empty(shape, dtype=torch.bool),
    )
