"""Images of several sizes as one padded tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageBatch:
    """A padded batch.

    Attributes:
        tensor: [B, C, H, W], images at the top left, zeros (the pixel mean) around them.
        sizes: (height, width) of each image without its padding.
        proposals: the regions [P_i, 4] that came with each image; None where none are taken.
    """

    tensor: Tensor
    sizes: list[tuple[int, int]]
    proposals: list[Tensor] | None = None


def batch_images(
    images: list[Tensor],
    divisibility: int = 0,
    memory_format: torch.memory_format = torch.channels_last,
) -> ImageBatch:
    """Pads images [C, h, w] to the largest height and width, each a multiple of `divisibility`.

    Convolutions are faster on a channels-last batch.
    """
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    step = max(divisibility, 1)
    height = -(-max(h for h, _ in sizes) // step) * step
    width = -(-max(w for _, w in sizes) // step) * step
    tensor = torch.zeros(
        (len(images), images[0].shape[0], height, width),
        dtype=images[0].dtype,
        device=images[0].device,
    ).contiguous(memory_format=memory_format)
    for padded, image, (h, w) in zip(tensor, images, sizes, strict=True):
        padded[:, :h, :w] = image
    return ImageBatch(tensor, sizes)
