"""Convert stored pixels to the uint8 tensors that a model expects."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from detlite.conventions import convention_of
from detlite.files.errors import DataError

from .sources import Pixels, Size

_TRANSPOSED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_FLIPPED_X, _FLIPPED_Y = (2, 3, 6, 7), (3, 4, 7, 8)  # orientations with flips after the swap


@dataclass(frozen=True)
class ImageOptions:
    """Options for reading image files.

    Attributes:
        max_pixels: limit of the number of pixels; may exceed Pillow's limit, the default.
        bits: the number of bits that a 16-bit image uses. The highest 8 of them are kept.
        exif_orientation: apply it (Pillow always does to TIFF), or return the pixels as stored.
        channels: the number of channels that the model expects; 3: RGB.
        value_range: (low, high) values that become 0 and 255 in images of more than 8 bits: one
            pair for all channels, or one pair per channel; (): use `bits`.
    """

    max_pixels: int = 178_956_970
    bits: int = 16
    exif_orientation: bool = True
    channels: int = 3
    value_range: tuple[float, ...] = ()


DEFAULT_OPTIONS = ImageOptions()


def build_image_options(cfg: CfgNode) -> ImageOptions:
    """Build the options of DATASETS.MAX_PIXELS and INPUT."""
    return ImageOptions(
        max_pixels=cfg.DATASETS.MAX_PIXELS,
        bits=cfg.INPUT.IMAGE_BITS,
        exif_orientation=convention_of(cfg).exif_orientation,
        channels=len(cfg.INPUT.PIXEL_MEAN),
        value_range=tuple(cfg.INPUT.VALUE_RANGE),
    )


def pixels_to_tensor(
    pixels: Pixels, options: ImageOptions, name: str, orientation: int = 1
) -> Tensor:
    """Convert stored pixels to uint8 [C, H, W], see `read_image`; errors name the image."""
    array = _select_channels(pixels.array, pixels.alpha, options.channels, name)
    if array.dtype != np.uint8 or not array.size:
        array = _to_8_bits(array, options, name)
    array = _upright(array, orientation)
    # Arrays of image libraries may be read-only or have negative strides, so copy.
    return torch.from_numpy(np.array(array.transpose(2, 0, 1), order="C"))


def _select_channels(array: np.ndarray, alpha: bool, required: int, name: str) -> np.ndarray:
    count = array.shape[2]
    colors = count - alpha
    if required in (count, colors):
        return array[:, :, :required]
    if colors == 1 and required == 3:
        return array[:, :, [0, 0, 0]]
    if required == 1 and colors == 3 and (array[:, :, :1] == array[:, :, 1:3]).all():
        return array[:, :, :1]
    raise DataError(
        f"{name}: the image has {count} channels, but the model expects {required}. Convert the "
        f"image, or train a model with {count} values in INPUT.PIXEL_MEAN and INPUT.PIXEL_STD "
        "(`detlite init` measures them)"
    )


def _to_8_bits(array: np.ndarray, options: ImageOptions, name: str) -> np.ndarray:
    """Convert stored values of any type to uint8, see `ImageOptions`. Raises DataError."""
    if array.dtype == np.bool_:
        return array * np.uint8(255)
    if array.dtype.kind not in "uif" or not array.size:
        kind = f"pixels of the type {array.dtype}" if array.size else "no pixels"
        raise DataError(f"{name}: has {kind}. Convert the image to integers or floats")
    if options.value_range:
        low, high = np.array(options.value_range, np.float32).reshape(-1, 2).T
        values = (array.astype(np.float32) - low) * (256 / (high - low))
        return np.nan_to_num(values, nan=0.0).clip(0, 255).astype(np.uint8)
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" or low < 0 or high > 0xFFFF:
        kind = "float" if array.dtype.kind == "f" else f"{8 * array.dtype.itemsize}-bit"
        raise DataError(
            f"{name}: a {kind} image with values from {low:g} to {high:g} has no 8-bit form. Set "
            "INPUT.VALUE_RANGE to the values that become black and white (`detlite init` measures "
            "them), or convert the image"
        )
    bits, problem = int(high).bit_length(), ""
    if bits > options.bits:
        problem = f"has values above the {options.bits} bits of INPUT.IMAGE_BITS (now white)"
    elif options.bits == 16 and 0 < bits < 15:
        problem = f"uses {bits} bits only, so its high byte is nearly black"
    if problem:  # `warnings` shows each text once per process
        advice = f"If other images do too, set INPUT.IMAGE_BITS {max(bits, 8)}"
        warnings.warn(f"a 16-bit image {problem}. {advice}", stacklevel=2)
    return (array >> (options.bits - 8)).clip(max=255).astype(np.uint8)


def _upright(array: np.ndarray, orientation: int) -> np.ndarray:
    """Apply an EXIF orientation to pixels [H, W, C] (CIPA DC-008, Exif 2.32, section 4.6.4)."""
    if orientation in _TRANSPOSED:
        array = array.swapaxes(0, 1)
    steps = [-1 if orientation in mirrored else 1 for mirrored in (_FLIPPED_Y, _FLIPPED_X)]
    return array[:: steps[0], :: steps[1]]


def upright_size(size: Size, orientation: int) -> Size:
    """Return the upright (height, width) of a stored size."""
    return size[::-1] if orientation in _TRANSPOSED else size
