"""Input images of a predictor, in any form."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from detlite.data.loading.image_io import ImageOptions, pixels_to_tensor, read_image
from detlite.data.loading.image_readers import Pixels, pillow_pixels

from .detectors import size_of

ImageInput = str | Path | bytes | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class LoadedImage:
    """An original image uint8 [C, H, W], and the network input made from it."""

    original: Tensor
    network_input: Tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the original image."""
        return size_of(self.original)


def load_image(image: ImageInput, options: ImageOptions, page: int | None = None) -> Tensor:
    """Read or convert an image to a tensor uint8 [C, H, W]; errors as for `Predictor`."""
    if isinstance(image, str | Path | bytes):
        return read_image(image, options=options, page=page)
    return image_to_tensor(image, options)


def image_to_tensor(image: Image.Image | np.ndarray | Tensor, options: ImageOptions) -> Tensor:
    """Convert an image to a tensor uint8 [C, H, W] with the channels of the model.

    TypeError or ValueError if it has another type, dtype or shape than `Predictor` takes.
    """
    rgb = "RGB, " * (options.channels == 3)
    if isinstance(image, Image.Image):
        return pixels_to_tensor(pillow_pixels(image), options, f"PIL image of mode {image.mode}")
    if isinstance(image, np.ndarray):
        array = image[:, :, None] if image.ndim == 2 and options.channels == 1 else image
        deep = array.dtype == np.uint16 or (options.value_range and array.dtype.kind in "uif")
        fits = array.ndim == 3 and array.shape[2] == options.channels
        if not fits or not (array.dtype == np.uint8 or deep):
            raise ValueError(
                f"an array must be {rgb}uint8 [H, W, {options.channels}]: got {image.dtype} "
                f"{list(image.shape)}. Other types need INPUT.VALUE_RANGE"
            )
        image = pixels_to_tensor(Pixels(array), options, "array")
    if not isinstance(image, Tensor):
        raise TypeError(
            "an image must be a path, bytes, a PIL image, an array or a tensor: got "
            f"{type(image).__name__}"
        )
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != options.channels:
        dtype = str(image.dtype).removeprefix("torch.")
        raise ValueError(
            f"a tensor must be {rgb}uint8 [{options.channels}, H, W]: got {dtype} "
            f"{list(image.shape)}"
        )
    if image.numel() == 0:
        raise ValueError(f"the image has no pixels: got a shape of {list(image.shape)}")
    return image
