"""Resize images to the size of the network input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from detlite.errors import ConfigError

Size = tuple[int, int]  # height, width
_MAX_PIXELS = 178_956_970  # of an enlarged image, as in Pillow


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
    """Resize an image uint8 [C, H, W] bilinearly; float32 in 0..1 for resize "interpolate".

    Raises:
        ConfigError: the size needs gigabytes, as a config from elsewhere may state it.
    """
    if size[0] * size[1] > max(_MAX_PIXELS, image[0].numel()):
        raise ConfigError(
            f"images become {size[1]}x{size[0]} (width x height), more than {_MAX_PIXELS} pixels: "
            "reduce INPUT.MIN_SIZE_TEST and MAX_SIZE_TEST, or those of training"
        )
    if resize == "interpolate":
        # Not rounded to uint8 again: the model accepts float images.
        return interpolate(image[None].float() / 255, size=size, mode="bilinear")[0]
    if resize == "opencv":
        return _resize_as_opencv(image, size)
    # Pillow, as in detectron2: torch's result differs by one level in a few pixels, which can move
    # a box by a fifth of a pixel.
    parts = [image] if len(image) == 3 else image[:, None]
    resized = []
    for part in parts:
        pil_image = Image.fromarray(part.permute(1, 2, 0).squeeze(2).cpu().numpy())
        pixels = np.array(pil_image.resize(size[::-1], Image.Resampling.BILINEAR))
        resized.append(torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1))
    return torch.cat(resized).contiguous().to(image.device)


def _resize_as_opencv(image: Tensor, size: tuple[int, int]) -> Tensor:
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
