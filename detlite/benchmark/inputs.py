"""Random inputs of the sizes that a detector on COCO has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

IMAGE = (800, 1216)  # height, width
CHANNELS = 256
STRIDES = (4, 8, 16, 32, 64)


def feature_maps(device: str, strides: Sequence[int] = STRIDES) -> list[Tensor]:
    """Float32 maps [1, 256, H / stride, W / stride] of one image."""
    height, width = IMAGE
    return [
        torch.randn(1, CHANNELS, -(-height // s), -(-width // s), device=device) for s in strides
    ]


def boxes_between(count: int, smallest: float, largest: float, device: str) -> Tensor:
    """Boxes [count, 4] anywhere in the image with sides between the two, small ones more often."""
    height, width = IMAGE
    ratio = largest / smallest
    sides = (
        smallest * ratio ** torch.rand(count, 2)
        if ratio > 20
        else (smallest + (largest - smallest) * torch.rand(count, 2))
    )
    sides = sides.minimum(torch.tensor([float(width), float(height)]))
    corner = torch.rand(count, 2) * (torch.tensor([float(width), float(height)]) - sides)
    return torch.cat([corner, corner + sides], dim=1).to(device)


def to_rois(boxes: Tensor) -> Tensor:
    """RoIs [N, 5] of (image index 0, x1, y1, x2, y2)."""
    return torch.cat([boxes.new_zeros(len(boxes), 1), boxes], dim=1)
