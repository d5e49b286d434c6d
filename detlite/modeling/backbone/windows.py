"""Split maps of tokens into the square windows that a transformer attends within.

Shapes: B images, H x W tokens of C channels, n windows of S x S tokens per image.
"""

from torch import Tensor
from torch.nn import functional as F


def ceil_div(side: int, size: int) -> int:
    """Return side / size, rounded up, for sides that may be symbols of an exported graph.

    Exporters do not support the remainder of a size, and ONNX and OpenVINO round a negative
    quotient up, so all numbers here are positive.
    """
    return (side + size - 1) // size


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Pad [B, C, H, W] with zeros at the right and bottom to multiples of `multiple`."""
    sides = x.shape[3], x.shape[2]
    right, bottom = (ceil_div(side, multiple) * multiple - side for side in sides)
    return F.pad(x, (0, right, 0, bottom))


def global_blocks(depth: int, count: int) -> frozenset[int]:
    """Return the indices of the blocks that attend to whole maps, evenly spread.

    As in ViTDet (Li et al., https://arxiv.org/abs/2203.16527), 4 of 12 blocks are 2, 5, 8 and 11.
    """
    count = min(count, depth)
    return frozenset((part + 1) * depth // count - 1 for part in range(count))


def window_counts(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the number of window rows and columns of a map."""
    return ceil_div(height, side), ceil_div(width, side)


def to_windows(x: Tensor, side: int) -> Tensor:
    """Split [B, H, W, C] into windows [B n, S, S, C], row by row.

    Windows at the right and bottom are padded with zeros. As in ViTDet, attention does not mask
    these tokens.
    """
    height, width = x.shape[1], x.shape[2]
    rows, columns = window_counts(height, width, side)
    x = F.pad(x, (0, 0, 0, columns * side - width, 0, rows * side - height))
    x = x.unflatten(2, (columns, side)).unflatten(1, (rows, side))  # [B, n_h, S, n_w, S, C]
    return x.transpose(2, 3).flatten(0, 2)


def from_windows(windows: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Join windows [B n, S, S, C] to [B, H, W, C], the inverse of `to_windows`."""
    side = windows.shape[1]
    rows, columns = window_counts(height, width, side)
    x = windows.unflatten(0, (batch, rows, columns)).transpose(2, 3)  # [B, n_h, S, n_w, S, C]
    x = x.flatten(3, 4).flatten(1, 2)
    # Not a slice, whose contiguity would become a condition of an exported graph.
    return F.pad(x, (0, 0, 0, width - columns * side, 0, height - rows * side))
