"""Pictures in all the forms that a predictor takes, as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.images import read_image

Picture = str | Path | Image.Image | np.ndarray | Tensor


def to_tensor(picture: Picture) -> Tensor:
    """A picture as uint8 RGB [3, H, W].

    Raises:
        DataError: a file that cannot be read.
        TypeError, ValueError: saying what is wrong with any other picture.
    """
    if isinstance(picture, str | Path):
        return read_image(picture)
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
            f"a picture is a path, a PIL image, an array or a tensor, not {type(picture).__name__}"
        )
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 3:
        raise ValueError(
            "a tensor must be RGB, uint8 [3, H, W]; this one is "
            f"{str(picture.dtype).removeprefix('torch.')} {list(picture.shape)}"
        )
    if picture.numel() == 0:
        raise ValueError(f"the picture has no pixels: {list(picture.shape)}")
    return picture


def size_of(image: Tensor) -> tuple[int, int]:
    """(height, width) of an image [..., H, W]."""
    return image.shape[-2], image.shape[-1]
