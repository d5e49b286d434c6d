"""Pictures and boxes at the size at which the network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from detlite.conventions import CONVENTIONS, Convention


def get_size(
    size: tuple[int, int], min_size: int, max_size: int, resize: str = "round"
) -> tuple[int, int]:
    """The size at which the network sees a picture.

    The short side becomes `min_size`, unless the long side would exceed `max_size`: then that
    becomes `max_size`. The aspect ratio is kept up to rounding to whole pixels.

    Args:
        size: (height, width) of the picture.
        min_size: wanted short side in pixels.
        max_size: largest long side in pixels.
        resize: how sides are rounded, see `Convention.resize`.

    Returns:
        (height, width), each at least 1.
    """
    short, long = min(size), max(size)
    sides: list[float]
    if resize == "floor":
        # In whole numbers, so that the short side is met exactly and no product falls just short.
        if long * min_size > max_size * short:
            min_size = round(max_size * short / long)
        sides = [min_size * side // short for side in size]
    elif resize in ("interpolate", "opencv"):
        scale = min(min_size / short, max_size / long)
        sides = [side * scale + 0.5 * (resize == "opencv") for side in size]
    else:
        # In these steps: where a side falls halfway between two pixels, as that of 88 x 44 does,
        # the last bit decides.
        sides = [min_size if side == short else min_size / short * side for side in size]
        if max(sides) > max_size:
            shrink = max_size / max(sides)
            sides = [side * shrink for side in sides]
        sides = [side + 0.5 for side in sides]
    height, width = (max(1, int(side)) for side in sides)
    return height, width


def resize_shortest(image: Tensor, min_size: int, max_size: int, resize: str = "round") -> Tensor:
    """A picture uint8 [3, H, W] resized as in evaluation, bilinearly, see `get_size`.

    Returns:
        uint8 [3, h, w]; with "interpolate" float32 in 0..1.
    """
    size = get_size((image.shape[-2], image.shape[-1]), min_size, max_size, resize)
    return _resize_image(image, size, resize)


class _Resize(v2.Transform):
    """Resizes to `params["size"]`.

    Boxes are moved as `Convention.rescale_boxes` moves them.
    """

    def __init__(self, convention: Convention) -> None:
        super().__init__()
        self.convention = convention

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if isinstance(inpt, tv_tensors.Image):
            resized = _resize_image(inpt, params["size"], self.convention.resize)
            return tv_tensors.wrap(resized, like=inpt)
        if self.convention.inclusive_boxes and isinstance(inpt, tv_tensors.BoundingBoxes):
            last_pixel = torch.tensor([0.0, 0.0, 1.0, 1.0])
            boxes = tv_tensors.wrap(inpt - last_pixel, like=inpt)
            resized = F.resize(boxes, list(params["size"]))
            return tv_tensors.wrap(resized + last_pixel, like=resized)
        return F.resize(inpt, list(params["size"]))


class RandomShortestSize(_Resize):
    """Resizes to a short side drawn from `min_sizes`, see `get_size`."""

    def __init__(
        self,
        min_sizes: Sequence[int],
        max_size: int,
        convention: Convention = CONVENTIONS["detlite"],
    ) -> None:
        super().__init__(convention)
        self.min_sizes = tuple(min_sizes)
        self.max_size = max_size

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        drawn = int(torch.randint(len(self.min_sizes), ())) if len(self.min_sizes) > 1 else 0
        min_size = self.min_sizes[drawn]
        size = v2.query_size(flat_inputs)
        return {"size": get_size(size, min_size, self.max_size, self.convention.resize)}


class ScaleJitter(_Resize):
    """Resizes to a random part or multiple of the size that just fits a square.

    Large-scale jitter, of which `data.cropping.RandomCrop` is the second half (arXiv 2012.07177,
    appendix). v2.ScaleJitter draws the same size, but makes nothing of pictures a pixel wide, and
    resizes otherwise than `MODEL.CONVENTION` does.

    Args:
        side: of the square, in pixels.
        scales: the smallest and the largest factor, between which all are as likely.
    """

    def __init__(
        self,
        side: int,
        scales: tuple[float, float],
        convention: Convention = CONVENTIONS["detlite"],
    ) -> None:
        super().__init__(convention)
        self.side = side
        self.scales = scales

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        low, high = self.scales
        size = v2.query_size(flat_inputs)
        factor = (low + (high - low) * float(torch.rand(()))) * self.side / max(size)
        return {"size": tuple(max(1, int(side * factor)) for side in size)}


def _resize_image(image: Tensor, size: tuple[int, int], resize: str) -> Tensor:
    if resize == "interpolate":
        # Not rounded to uint8 again: the model takes float images as well.
        return interpolate(image[None].float() / 255, size=size, mode="bilinear")[0]
    if resize == "opencv":
        return resize_as_opencv(image, size)
    # By Pillow, as the other frameworks do it: torch's own is one level off in a few pixels, which
    # is enough to move a box by a fifth of a pixel.
    picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    resized = np.array(picture.resize(size[::-1], Image.Resampling.BILINEAR))
    return torch.from_numpy(resized).permute(2, 0, 1).contiguous().to(image.device)


def resize_as_opencv(image: Tensor, size: tuple[int, int]) -> Tensor:
    """A picture uint8 [3, H, W] resized to (height, width) as OpenCV's INTER_LINEAR does it.

    Two pixels a side are mixed, however small the result, by weights that are whole numbers of
    2048ths; what is between the two passes and behind them is rounded as there, so that every
    pixel is the same (on processors for which OpenCV has no arithmetic of its own).
    """
    rows, lower, upper = _opencv_taps(image.shape[1], size[0], image.device)
    columns, left, right = _opencv_taps(image.shape[2], size[1], image.device)
    # Past the right border one pixel counts alone; past the lower one twice, rounded twice.
    inner = (columns >= 0) & (columns < image.shape[2] - 1)
    left, right = torch.where(inner, left, 2048), torch.where(inner, right, 0)
    wide = _mixed(image.int(), 2, columns, left, right, 4, 0)
    mixed = _mixed(wide, 1, rows, lower[:, None], upper[:, None], 0, 16)
    return mixed.add_(2).bitwise_right_shift_(2).clamp_(0, 255).to(torch.uint8)


def _mixed(
    image: Tensor,
    dim: int,
    first: Tensor,
    weight: Tensor,
    next_weight: Tensor,
    sum_shift: int,
    own: int,
) -> Tensor:
    """Pixels `first` along a dimension and the next ones, weighted, shifted by `own` and added; the
    sum is shifted by `sum_shift`. In place where it can be: pictures are large."""
    last = image.shape[dim] - 1
    low = image.index_select(dim, first.clamp(0, last)).mul_(weight).bitwise_right_shift_(own)
    high = image.index_select(dim, (first + 1).clamp_(0, last)).mul_(next_weight)
    return low.add_(high.bitwise_right_shift_(own)).bitwise_right_shift_(sum_shift)


def _opencv_taps(length: int, wanted: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Along a side the first of two pixels for each wanted one, and the weights of both."""
    # The scale in double precision, positions and weights in single.
    scale = 1.0 / (wanted / length)
    position = (
        (torch.arange(wanted, dtype=torch.float64, device=device) + 0.5) * scale - 0.5
    ).float()
    first = position.floor()
    second = position - first
    weights = ((1 - second) * 2048).round().int(), (second * 2048).round().int()
    return first.long(), *weights
