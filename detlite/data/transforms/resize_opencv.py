"""Resize images like OpenCV, for models that were trained with it."""

import torch
from torch import Tensor


def resize_as_opencv(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize an image uint8 [3, H, W] to (height, width) like OpenCV's INTER_LINEAR.

    Each output pixel mixes two pixels per side, even when the image shrinks. Weights are integer
    multiples of 1/2048, and intermediate results are rounded as in OpenCV, so that every pixel is
    equal (on processors for which OpenCV has no special code).
    """
    rows, upper, lower = _weights(image.shape[1], size[0], image.device)
    columns, left, right = _weights(image.shape[2], size[1], image.device)
    # Beyond the right border OpenCV uses only one pixel. Beyond the lower border it adds the pixel
    # with both weights, each rounded.
    inner = (columns >= 0) & (columns < image.shape[2] - 1)
    left, right = torch.where(inner, left, 2048), torch.where(inner, right, 0)
    wide = _mix(image.int(), 2, columns, left, right, sum_shift=4, term_shift=0)
    mixed = _mix(wide, 1, rows, upper[:, None], lower[:, None], sum_shift=0, term_shift=16)
    return mixed.add_(2).bitwise_right_shift_(2).clamp_(0, 255).to(torch.uint8)


def _mix(
    image: Tensor,
    dim: int,
    first: Tensor,
    weight: Tensor,
    next_weight: Tensor,
    sum_shift: int,
    term_shift: int,
) -> Tensor:
    """Mix pixels `first` along a dimension with the next ones.

    Both weighted terms are shifted right by `term_shift`, and their sum by `sum_shift`. In place
    where possible, because images are large.
    """
    last = image.shape[dim] - 1
    term = image.index_select(dim, first.clamp(0, last)).mul_(weight)
    next_term = image.index_select(dim, (first + 1).clamp_(0, last)).mul_(next_weight)
    total = term.bitwise_right_shift_(term_shift).add_(next_term.bitwise_right_shift_(term_shift))
    return total.bitwise_right_shift_(sum_shift)


def _weights(length: int, new_length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first of two pixels for each new pixel of a side, and the weights of both."""
    # OpenCV computes the scale in double precision, positions and weights in single precision.
    scale = 1.0 / (new_length / length)
    centers = torch.arange(new_length, dtype=torch.float64, device=device) + 0.5
    position = (centers * scale - 0.5).float()
    first = position.floor()
    second = position - first
    weights = ((1 - second) * 2048).round().int(), (second * 2048).round().int()
    return first.long(), *weights
