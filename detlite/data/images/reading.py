"""Read images as uint8 tensors with the channels that a model expects, within limits."""

from dataclasses import astuple
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from detlite.data.remote.remote_path import RemotePath
from detlite.files import cache
from detlite.files.errors import DataError, RemoteError

from .formats import open_image
from .pixels import DEFAULT_OPTIONS, ImageOptions, pixels_to_tensor, upright_size
from .sources import ImageBytes, ImageSource, OpenImage, Pixels, Size


def count_pages(source: ImageSource | bytes, options: ImageOptions = DEFAULT_OPTIONS) -> int:
    """Return the number of pages or frames to read; 1 if the pages are channels of one image."""
    source = ImageBytes(source) if isinstance(source, bytes) else source
    with open_image(source, options.max_pixels) as file:
        count = len(file.pages)
        return 1 if count > 1 and _pages_are_channels(file, options) else count


def read_image(
    source: ImageSource | bytes,
    size: Size | None = None,
    options: ImageOptions = DEFAULT_OPTIONS,
    page: int | None = None,
    min_size: Size | None = None,
) -> Tensor:
    """Read an image as uint8 [C, H, W], RGB for a model of 3 channels.

    For 3 channels, gray images are expanded, and alpha channels dropped. For 1 channel, a color
    image must be gray. Otherwise, the image must have the number of channels of the model, counted
    with its alpha channel or without, or that number of pages with one channel.

    Args:
        source: a file, or the content of one of SAFE_FORMATS.
        size: the required upright (height, width); None: any.
        page: page of a file with several, from 0; None: the file must have one.
        min_size: if given, a JPEG may be read at a reduced size of at least this one.

    Raises:
        DataError: the file is missing, damaged, or does not fit.
        TooLargeError: it has too many pixels; raised before decoding.
        RemoteError: it cannot be fetched.
    """
    source = ImageBytes(source) if isinstance(source, bytes) else source
    read = partial(_read, source, size, options, page, min_size)
    try:
        return read()
    except RemoteError:
        raise
    except DataError:
        # A cached copy may be damaged, or outdated because the original was repaired.
        if not isinstance(source, RemotePath) or not source.forget():
            raise
    return read()


def check_image(
    source: ImageSource, size: Size, options: ImageOptions = DEFAULT_OPTIONS
) -> tuple[str | None, int]:
    """Check an image file that must have a size (height, width).

    Only header and end of a valid image are read, in about 0.1 ms. A file without the usual end is
    decoded, because some programs append data.

    Returns:
        What is wrong with the image, or None; and the EXIF orientation that is applied to it.
    """
    orientation = 1
    try:
        with open_image(source, options.max_pixels) as file:
            orientation = file.orientation(header_only=True) if options.exif_orientation else 1
            fits = upright_size(file.size, orientation) == size and len(file.pages) == 1
            if fits and options.channels in (3, file.channels) and file.is_complete:
                return None, orientation
    except DataError as error:
        if isinstance(error, RemoteError):
            raise
    try:  # says what is wrong
        read_image(source, size, options)
    except DataError as error:
        if isinstance(error, RemoteError):
            raise
        return str(error).removeprefix(f"{source}: "), orientation
    return None, orientation


def read_reduced(
    source: ImageSource, size: Size, options: ImageOptions, min_size: Size, cache_bytes: int
) -> Tensor:
    """Read an image at a size of at least `min_size`, if that is at most half of its `size`.

    The reduced pixels of a local file are cached on the disk, up to `cache_bytes` of all files.
    """
    if min(size[0] // min_size[0], size[1] // min_size[1]) < 2:
        return read_image(source, size, options)

    def read() -> Tensor:
        image = read_image(source, size, options, min_size=min_size)
        factor = min(image.shape[1] // min_size[0], image.shape[2] // min_size[1])
        if factor < 2:
            return image
        return avg_pool2d(image.float(), factor, ceil_mode=True).round().to(torch.uint8)

    def encode() -> bytes:
        buffer = BytesIO()
        np.save(buffer, read().numpy())
        return buffer.getvalue()

    files = cache.file_cache("reduced", cache_bytes)
    if files is None or not isinstance(source, Path) or not source.is_file():
        return read()
    status = source.stat()
    stamp = source.absolute(), status.st_size, status.st_mtime_ns
    key = cache.key("npy", *stamp, *astuple(options), *size, *min_size)
    content = files.read(key, encode)
    try:
        return torch.from_numpy(np.load(BytesIO(content)))
    except Exception:  # the cached file is damaged, for example by a power failure
        files.forget(key)
        return read()


def image_size(path: Path, upright: bool = True) -> Size:
    """Return the (height, width) of an image from its header. Raises DataError."""
    with open_image(path, DEFAULT_OPTIONS.max_pixels) as file:
        return upright_size(file.size, file.orientation()) if upright else file.size


def _read(
    source: ImageSource,
    size: Size | None,
    options: ImageOptions,
    page: int | None,
    min_size: Size | None,
) -> Tensor:
    with open_image(source, options.max_pixels, for_page=page is not None) as file:
        count = len(file.pages)
        as_channels = page is None and count > 1 and _pages_are_channels(file, options)
        if page is None and count > 1 and not as_channels:
            raise DataError(
                f"the image has {count} pages, but must have one. Save each page as a separate "
                "file (`detlite predict` reads them all), or train a model whose channels are the "
                "pages, with as many values in INPUT.PIXEL_MEAN and INPUT.PIXEL_STD"
            )
        if page is not None and page >= count:
            raise DataError(f"the image has no page {page + 1}, only {count}")
        if min_size is not None and options.exif_orientation:
            min_size = upright_size(min_size, file.orientation(header_only=True))
        pixels = file.pixels(page or 0, min_size)
        array = pixels.array
        if as_channels:
            array = np.concatenate([file.pixels(k).array for k in range(count)], axis=2)
        # After decoding, because the EXIF data of a PNG may follow its pixels.
        orientation = file.orientation() if options.exif_orientation else 1
        stored = file.size if min_size is not None and min_size != file.size else array.shape[:2]
        if size is not None and upright_size(stored, orientation) != size:
            upright = options.exif_orientation
            raise DataError(_size_problem(stored, file.orientation(), upright, size))
    return pixels_to_tensor(Pixels(array, pixels.alpha), options, str(source), orientation)


def _pages_are_channels(file: OpenImage, options: ImageOptions) -> bool:
    if options.channels in (1, 3) or options.channels != len(file.pages):
        return False
    return file.pixels(0).array.shape[2] == 1


def _size_problem(stored: Size, orientation: int, upright: bool, expected: Size) -> str:
    """Describe an image whose size, upright or as stored, differs from the annotation file's."""
    rotated = upright_size(stored, orientation)
    actual = rotated if upright else stored
    problem = (
        f"the image is {actual[1]}x{actual[0]} (width x height), "
        f"but the annotation file has {expected[1]}x{expected[0]}"
    )
    if actual == expected[::-1] and stored == rotated:
        problem += ": width and height are swapped in one of the two"
    elif actual == expected[::-1]:
        before, pixels = ("before", "stored") if upright else ("after", "upright")
        problem += (
            f", its size {before} EXIF orientation {orientation} is applied. If annotations refer "
            f"to {pixels} pixels, set MODEL.CONVENTION_OVERRIDE [exif_orientation={not upright}]"
        )
    return problem
