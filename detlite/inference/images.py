"""Pictures in every form that a predictor takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .tta import size_of

Picture = str | Path | bytes | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Loaded:
    """A picture uint8 [3, H, W], and the image that the model sees of it."""

    picture: Tensor
    image: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the picture."""
        return size_of(self.picture)

    @property
    def cells(self) -> tuple[int, int]:
        """(rows, columns) of 32 pixels that the image takes: images of as many make one batch, as
        padding them to one size adds little."""
        height, width = size_of(self.image)
        return -(-height // 32), -(-width // 32)


def as_tensor(picture: Image.Image | np.ndarray | Tensor) -> Tensor:
    """A picture as uint8 RGB [3, H, W]."""
    if isinstance(picture, Image.Image):
        if picture.mode.startswith(("I", "F")):
            raise ValueError(
                f"the PIL image has mode {picture.mode!r}, which has no 8-bit form of its own: "
                "convert it, or give the file's path"
            )
        picture = np.array(picture.convert("RGB"))
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise ValueError(
                "an array must be RGB, uint8 [H, W, 3]; this one is "
                f"{picture.dtype} {list(picture.shape)}"
            )
        # A copy, as torch takes neither negative strides (BGR[..., ::-1]) nor read-only arrays.
        picture = torch.from_numpy(picture.transpose(2, 0, 1).copy())
    if not isinstance(picture, Tensor):
        raise TypeError(
            "a picture is a path, bytes, a PIL image, an array or a tensor, not "
            f"{type(picture).__name__}"
        )
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 3:
        raise ValueError(
            "a tensor must be RGB, uint8 [3, H, W]; this one is "
            f"{str(picture.dtype).removeprefix('torch.')} {list(picture.shape)}"
        )
    if picture.numel() == 0:
        raise ValueError(f"the picture has no pixels: {list(picture.shape)}")
    return picture
