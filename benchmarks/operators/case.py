"""Benchmark cases of operators, and random inputs with the sizes of a detector on COCO."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Height and width of the image, and stride -> height and width of its feature map.
IMAGE = (800, 1216)
LEVELS = {4: (200, 304), 8: (100, 152), 16: (50, 76), 32: (25, 38), 64: (13, 19)}


@dataclass(frozen=True)
class Case:
    """A comparison of an operator with its reference.

    Args:
        name: name in the results.
        run: call of detlite.
        reference: call of torchvision, or of another library if torchvision has no such operator.
        traffic: minimum number of bytes that an implementation must read and write; 0 if memory
            does not limit the speed.
        dtype: data type of detlite's input.
    """

    name: str
    run: Callable[[], object]
    reference: Callable[[], object]
    traffic: int = 0
    dtype: str = "float32"


def random_boxes(
    count: int, min_side: float, max_side: float, device: str, image: tuple[int, int] = IMAGE
) -> Tensor:
    """Return random boxes [count, 4] in the image, with sides in a range of pixels.

    If the range is wide, the sides are log-uniform: small boxes are more frequent.
    """
    limit = torch.tensor(image[::-1], dtype=torch.float32)
    sides = torch.rand(count, 2)
    if max_side > 20 * min_side:
        sides = min_side * (max_side / min_side) ** sides
    else:
        sides = min_side + (max_side - min_side) * sides
    sides = sides.minimum(limit)
    corner = torch.rand(count, 2) * (limit - sides)
    return torch.cat([corner, corner + sides], dim=1).to(device)


def jitter_boxes(boxes: Tensor) -> Tensor:
    """Move the sides of boxes [N, 4] by about a tenth, as if they were proposals for objects."""
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    return boxes + torch.randn_like(boxes) / 10 * sides
