"""Maps of tokens cut into square windows, within which a transformer attends.

Shapes: B images, H x W tokens of C channels, windows of S x S, n of them in an image.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from detlite.modeling.layers.asymmetric_padding import parts


def global_blocks(depth: int, count: int) -> frozenset[int]:
    """The numbers of the blocks that attend to whole maps: the last of `count` equal parts each.

    So ViTDet spreads them (Li et al., https://arxiv.org/abs/2203.16527): 4 of 12 are 2, 5, 8, 11.
    """
    count = min(count, depth)
    return frozenset((part + 1) * depth // count - 1 for part in range(count))


def window_counts(height: int, width: int, side: int) -> tuple[int, int]:
    """How many windows lie below and beside each other."""
    return parts(height, side), parts(width, side)


def to_windows(x: Tensor, side: int) -> Tensor:
    """[B, H, W, C] -> [B n, S, S, C], windows of an image row by row.

    The last ones are filled up with zeros, which are attended to as any token, as in ViTDet.
    """
    height, width = x.shape[1], x.shape[2]
    rows, columns = window_counts(height, width, side)
    x = F.pad(x, (0, 0, 0, columns * side - width, 0, rows * side - height))
    x = x.unflatten(2, (columns, side)).unflatten(1, (rows, side))  # (B, n_h, S, n_w, S, C)
    return x.transpose(2, 3).flatten(0, 2)


def from_windows(windows: Tensor, batch: int, height: int, width: int) -> Tensor:
    """The inverse of `to_windows`: [B n, S, S, C] -> [B, H, W, C]."""
    side = windows.shape[1]
    rows, columns = window_counts(height, width, side)
    x = windows.unflatten(0, (batch, rows, columns)).transpose(2, 3)  # (B, n_h, S, n_w, S, C)
    x = x.flatten(3, 4).flatten(1, 2)
    # A slice would do, but whether it is contiguous would be a condition of an exported graph.
    return F.pad(x, (0, 0, 0, width - columns * side, 0, height - rows * side))
