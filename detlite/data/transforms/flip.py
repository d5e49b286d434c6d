"""Random flips of images and their boxes. `PackedMasks.transformed` flips masks."""

from __future__ import annotations

import torch
from torch import Tensor

from detlite.structures import boxes as box_ops


class RandomFlip:
    """Draws from the global generator whether to flip.

    Args:
        horizontal: probability of a flip of left and right.
        vertical: probability of a flip of top and bottom.
    """

    def __init__(self, horizontal: float, vertical: float) -> None:
        self._probabilities = horizontal, vertical

    def draw(self) -> tuple[bool, bool]:
        """Return (flip_x, flip_y)."""
        flip_x, flip_y = (p > 0 and float(torch.rand(1)) < p for p in self._probabilities)
        return flip_x, flip_y


def flip_image(image: Tensor, flip_x: bool, flip_y: bool) -> Tensor:
    """Flip an image `[3, H, W]`."""
    dims = [-1] * flip_x + [-2] * flip_y
    return image.flip(dims) if dims else image


def flip_boxes(boxes: Tensor, size: tuple[int, int], flip_x: bool, flip_y: bool) -> Tensor:
    """Flip boxes `[N, 4]` in an image of size (height, width)."""
    height, width = size
    if flip_x:
        boxes = box_ops.flip(boxes, width)
    if flip_y:
        x1, y1, x2, y2 = boxes.unbind(-1)
        boxes = torch.stack([x1, height - y2, x2, height - y1], dim=-1)
    return boxes
