"""Measure the channels and values of a sample of images."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from detlite.data.images.formats import open_image
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions, pixels_to_tensor
from detlite.data.images.sources import DECODE_ERRORS, ImageSource, Pixels
from detlite.files.errors import DataError

T = TypeVar("T")

_SAMPLE = 32  # number of images that are decoded
_PIXELS = 20_000  # per image
_PERCENTILES = 0.1, 99.9  # become black and white
_MIN_FRACTION = 0.25  # of the values of IMAGE_BITS that the percentiles must span

_COMMON = Pixels(np.zeros((1, 1, 3), np.uint8))  # in place of images that need no measuring


@dataclass(frozen=True)
class ImageValues:
    """Channels and values of images.

    Attributes:
        options: how to read the images.
        mean, std: of each channel, from 0 to 1; not measured for RGB images of 8 bits.
        reason: the type of the values and why they are read with `options.bits` or
            `options.value_range`; empty for 8 bits.
    """

    options: ImageOptions
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    reason: str = ""


DEFAULT_VALUES = ImageValues(DEFAULT_OPTIONS)


def spread(files: Sequence[T]) -> Sequence[T]:
    """Return a sample of a list."""
    return files[:: max(len(files) // _SAMPLE, 1)][:_SAMPLE]


def measure_values(files: Sequence[ImageSource], options: ImageOptions) -> ImageValues:
    """Measure images, and adapt the `options` for reading them.

    A model for color accepts gray images too, so the number of channels is 3 for both. Otherwise it
    is the number of most images; single-channel pages count as channels. Values of more than 8 bits
    are read with IMAGE_BITS, or with a VALUE_RANGE from percentiles if they are floats or if most
    values are in a small part of the range.
    """
    samples = [pixels for file in files if (pixels := _sample(file, options.max_pixels))]
    counts = Counter(pixels.array.shape[2] - pixels.alpha for pixels in samples)
    if options.channels == 3 and not counts.keys() <= {1, 3}:
        options = replace(options, channels=counts.most_common(1)[0][0])
    reason = ""
    deep = [x.array for x in samples if x.array.dtype not in (np.uint8, np.bool_)]
    if deep and options.bits == 16 and not options.value_range:
        options, reason = _fit_range(deep, options)
    read = []
    for pixels in samples:
        with suppress(DataError):  # a sample that the options do not fit
            image = pixels_to_tensor(pixels, options, "sample")
            read.append(image.flatten(1).T.double().numpy() / 255)
    values = np.concatenate(read) if read else np.full((1, options.channels), 0.5)
    mean, std = values.mean(axis=0), values.std(axis=0).clip(min=0.01)
    return ImageValues(options, tuple(mean.round(4).tolist()), tuple(std.round(4).tolist()), reason)


def _sample(file: ImageSource, max_pixels: int) -> Pixels | None:
    """Return some pixels [P, 1, C] of an image; None if it cannot be read."""
    try:
        with open_image(file, max_pixels) as image:
            if image.is_common and len(image.pages) == 1:
                return _COMMON
            pages = [image.pixels(page) for page in range(len(image.pages))]
    except (DataError, *DECODE_ERRORS):
        return None
    arrays = [page.array.reshape(-1, 1, page.array.shape[2]) for page in pages]
    if len({(len(array), array.shape[2]) for array in arrays}) > 1 or not len(arrays[0]):
        return None
    chosen = np.random.default_rng(0).choice(len(arrays[0]), min(len(arrays[0]), _PIXELS), False)
    return Pixels(np.concatenate([array[chosen] for array in arrays], axis=2), pages[0].alpha)


def _fit_range(arrays: Sequence[np.ndarray], options: ImageOptions) -> tuple[ImageOptions, str]:
    """Return the options that map deep values to 8 bits, and why."""
    # Colors keep their balance; other channels may have different units.
    columns = options.channels if options.channels != 3 else 1
    fitting = [a for a in arrays if columns == 1 or a.shape[2] == columns]
    values = np.concatenate([a.reshape(-1, columns) for a in fitting]).astype(np.float64)
    values = np.where(np.isfinite(values), values, np.nan)
    low, high = np.nanpercentile(values, _PERCENTILES, axis=0)
    minimum, maximum = float(np.nanmin(values)), float(np.nanmax(values))
    whole = all(a.dtype.kind in "iu" for a in arrays)
    numbers = "whole numbers" if whole else "floats"
    reason = f"values of a sample are {numbers} from {minimum:g} to {maximum:g}"
    if whole and minimum >= 0 and maximum <= 0xFFFF:
        bits = max(int(maximum).bit_length(), 8)
        if (high - low).min() >= _MIN_FRACTION * (1 << bits):
            return replace(options, bits=bits), f"{reason}, which need {bits} bits (IMAGE_BITS)"
    high = np.maximum(high, low + (1 if whole else 1e-6))
    ranges = tuple(float(f"{x:.5g}") for pair in zip(low, high, strict=True) for x in pair)
    reason += ", of which 99.8 % are in the range from black to white (VALUE_RANGE)"
    return replace(options, value_range=ranges), reason
