"""Resize images to the size of the network input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

Size = tuple[int, int]  # height, width


def size_of(image: Tensor) -> Size:
    """Return (height, width) of an image [..., H, W]."""
    return image.shape[-2], image.shape[-1]


def get_size(size: Size, min_size: int, max_size: int, resize: str = "round") -> Size:
    """Return the size of the network input for an image.

    The short side becomes `min_size`. If the long side would exceed `max_size`, it becomes
    `max_size` instead. The aspect ratio is kept up to rounding, see `Convention.resize`. Each side
    is at least 1.
    """
    short, long = min(size), max(size)
    sides: list[float]
    if resize == "floor":
        # Integers, so that the short side is exact and no product is slightly below a whole pixel.
        if long * min_size > max_size * short:
            min_size = round(max_size * short / long)
        sides = [min_size * side // short for side in size]
    elif resize in ("interpolate", "opencv"):
        scale = min(min_size / short, max_size / long)
        sides = [side * scale + 0.5 * (resize == "opencv") for side in size]
    else:
        # detectron2's order of operations: for a side halfway between two pixels, as with an image
        # of 88 x 44, the last bit decides.
        sides = [min_size if side == short else min_size / short * side for side in size]
        if max(sides) > max_size:
            shrink = max_size / max(sides)
            sides = [side * shrink for side in sides]
        sides = [side + 0.5 for side in sides]
    height, width = (max(1, int(side)) for side in sides)
    return height, width


@dataclass(frozen=True)
class RandomShortestSize:
    """Draws the target of the short side from `min_sizes`, see `get_size`."""

    min_sizes: Sequence[int]
    max_size: int
    resize: str = "round"

    def __call__(self, size: Size) -> Size:
        count = len(self.min_sizes)
        index = int(torch.randint(count, ())) if count > 1 else 0
        return get_size(size, self.min_sizes[index], self.max_size, self.resize)

    def largest(self, size: Size) -> Size:
        """Return the size for the largest target."""
        return get_size(size, max(self.min_sizes), self.max_size, self.resize)


def resize_shortest(image: Tensor, min_size: int, max_size: int, resize: str = "round") -> Tensor:
    """Resize an image uint8 [3, H, W] to the size of `get_size`, see `resize_image`."""
    size = get_size((image.shape[-2], image.shape[-1]), min_size, max_size, resize)
    return resize_image(image, size, resize)


def resize_image(image: Tensor, size: Size, resize: str) -> Tensor:
    """Resize an image uint8 [C, H, W] bilinearly; float32 in 0..1 for resize "interpolate"."""
    if resize == "interpolate":
        # Not rounded to uint8 again: the model accepts float images.
        return interpolate(image[None].float() / 255, size=size, mode="bilinear")[0]
    if resize == "opencv":
        from .resize_opencv import resize_as_opencv

        return resize_as_opencv(image, size)
    # Pillow, as in detectron2: torch's result differs by one level in a few pixels, which can move
    # a box by a fifth of a pixel.
    parts = [image] if len(image) == 3 else image[:, None]
    resized = []
    for part in parts:
        pil_image = Image.fromarray(part.permute(1, 2, 0).squeeze(2).cpu().numpy())
        pixels = np.array(pil_image.resize(size[::-1], Image.Resampling.BILINEAR))
        resized.append(torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1))
    return torch.cat(resized).contiguous().to(image.device)
