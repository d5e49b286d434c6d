"""What a comparison is, and random inputs of the sizes that a detector on COCO has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Seconds since some moment. `time.process_time` counts what the process itself used, which on one
# thread says as much, on a machine that others use too.
Clock = Callable[[], float]
# Height and width of the image, and of its map at each stride.
IMAGE = (800, 1216)
LEVELS = {4: (200, 304), 8: (100, 152), 16: (50, 76), 32: (25, 38), 64: (13, 19)}


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        name: as in the results.
        run: detlite's call.
        reference: torchvision's, or where it has none, what else does the same job.
        traffic: the bytes that any implementation must read and write at least; 0 where the time
            goes elsewhere.
        dtype: of detlite's input.
    """

    name: str
    run: Callable[[], object]
    reference: Callable[[], object]
    traffic: int = 0
    dtype: str = "float32"


def boxes_between(
    count: int, smallest: float, largest: float, device: str, image: tuple[int, int] = IMAGE
) -> Tensor:
    """Boxes [count, 4] anywhere in the image with sides between the two; where these are far
    apart, small ones more often."""
    limit = torch.tensor(image[::-1], dtype=torch.float32)
    sides = torch.rand(count, 2)
    if largest > 20 * smallest:
        sides = smallest * (largest / smallest) ** sides
    else:
        sides = smallest + (largest - smallest) * sides
    sides = sides.minimum(limit)
    corner = torch.rand(count, 2) * (limit - sides)
    return torch.cat([corner, corner + sides], dim=1).to(device)


def shifted(boxes: Tensor) -> Tensor:
    """Boxes [N, 4] off by a tenth of their sides, as proposals lie around objects."""
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + torch.randn_like(boxes) / 10 * sides
