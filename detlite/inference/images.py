"""Input images of a predictor, in any form."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .detectors import size_of

ImageInput = str | Path | bytes | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class LoadedImage:
    """An original image uint8 [3, H, W], and the network input made from it."""

    original: Tensor
    network_input: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the original image."""
        return size_of(self.original)

    @property
    def cells(self) -> tuple[int, int]:
        """(rows, columns) of 32 pixels of the network input, rounded up.

        Images with the same number of cells are batched together, as they need little padding.
        """
        height, width = size_of(self.network_input)
        return -(-height // 32), -(-width // 32)


def image_to_tensor(image: Image.Image | np.ndarray | Tensor) -> Tensor:
    """Convert an image to an RGB tensor uint8 [3, H, W].

    Raises:
        TypeError, ValueError: the image has another type, dtype or shape than `Predictor` takes.
    """
    if isinstance(image, Image.Image):
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"a PIL image of mode {image.mode!r} has no 8-bit values: convert it, or pass the "
                "path of its file"
            )
        image = np.array(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(
                f"an array must be RGB, uint8 [H, W, 3]: got {image.dtype} {list(image.shape)}"
            )
        # Copy, because torch takes neither negative strides (BGR[..., ::-1]) nor read-only arrays.
        image = torch.from_numpy(image.transpose(2, 0, 1).copy())
    if not isinstance(image, Tensor):
        raise TypeError(
            "an image must be a path, bytes, a PIL image, an array or a tensor: got "
            f"{type(image).__name__}"
        )
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        dtype = str(image.dtype).removeprefix("torch.")
        raise ValueError(f"a tensor must be RGB, uint8 [3, H, W]: got {dtype} {list(image.shape)}")
    if image.numel() == 0:
        raise ValueError(f"the image has no pixels: got a shape of {list(image.shape)}")
    return image
