"""Open image files of any format.

Pillow reads common formats, and tifffile the TIFFs that Pillow cannot read without loss. A format
of your own is a function, registered under its suffix:

    @IMAGE_READERS.register(".dcm")
    def read_dicom(file):
        return pydicom.dcmread(file).pixel_array
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from detlite.errors import ConfigError
from detlite.files.errors import DataError, RefusedFileError, RemoteError, short_reason
from detlite.files.reading import open_file
from detlite.registry import Registry

from .pillow import (
    ALPHA,
    FILE_FORMATS,
    NO_PAGE,
    SAFE_FORMATS,
    PillowImage,
    check_tiles,
    is_read_by_pillow,
    open_pillow,
    pillow_suffixes,
)
from .sources import (
    DECODE_ERRORS,
    ImageBytes,
    ImageSource,
    OpenImage,
    Pixels,
    Size,
    damage_as_value_error,
    too_large,
)

_MAX_VALUES = 1 << 31  # of a page of a TIFF
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_UNKNOWN = (
    "the image is damaged or truncated, or of a format that is not read, such as HEIC, DICOM, PDF "
    "or HTML. Convert it, or register a reader for its suffix (docs/formats.md)"
)
_MIN_KEPT = 8  # pages
_MAX_PAGES = 1 << 20
_MAX_PAGES_OF_BYTES = 256  # bytes may come from anybody, and each page costs time
# A reader accepts a path or an open file. It returns an array [H, W] or [H, W, C] of integers or
# floats, or a list of such arrays, one per page.
ImageReader = Callable[[Any], Any]
IMAGE_READERS: Registry[ImageReader] = Registry("image reader")
_kept = threading.local()  # `file`: the last file of many pages of each thread, and its key


class ArrayImage(OpenImage):
    """An image of a registered reader, which decodes all pages in one call."""

    def __init__(self, arrays: Any, max_pixels: int, max_pages: int) -> None:
        super().__init__(max_pixels, max_pages)
        self._arrays = [np.asarray(a) for a in (arrays if isinstance(arrays, list) else [arrays])]
        for array in self._arrays:
            if array.ndim not in (2, 3) or array.dtype.kind not in "buif" or not array.size:
                raise ValueError(
                    "its reader must return arrays [H, W] or [H, W, C] of numbers, not "
                    f"{array.dtype} {list(array.shape)}"
                )
            self.check_pixel_count(*array.shape[:2])
        self.size = self._arrays[0].shape[:2]
        self.pages = range(len(self._arrays))

    def pixels(self, page: int, min_size: Size | None = None) -> Pixels:
        return Pixels(np.atleast_3d(self._arrays[page]))


class TiffImage(OpenImage):
    """A TIFF read by tifffile: any number of channels of any type.

    Args:
        stream: the open file.
        reason: why the image needs tifffile, for the error if it is missing.
        max_pixels, max_pages: see `OpenImage`.
    """

    def __init__(self, stream: IO[bytes], reason: str, max_pixels: int, max_pages: int) -> None:
        try:
            import tifffile
        except ImportError as error:
            raise DataError(f"{reason} needs tifffile: pip install 'detlite[tiff]'") from error
        super().__init__(max_pixels, max_pages)
        self._stream = stream
        stream.seek(0)
        with damage_as_value_error():
            self._file = tifffile.TiffFile(stream)
            pages: list[Any] = []
            offsets = set[int]()
            for page in self._file.pages:
                if page.offset in offsets:
                    raise ValueError("its pages form a cycle")
                self.check_page_count(len(offsets) + 1)
                offsets.add(page.offset)
                pages.append(page)
            self.pages = [i for i, page in enumerate(pages) if not page.subfiletype & NO_PAGE]
            sizes = [(pages[i].imagelength, pages[i].imagewidth) for i in self.pages]
            self.size = sizes[0]
            if not all(isinstance(side, int) and side > 0 for size in sizes for side in size):
                raise ValueError("a page without pixels, or with several sizes")

    def close(self) -> None:
        self._file.close()
        self._stream.close()

    def pixels(self, page: int, min_size: Size | None = None) -> Pixels:
        stored: Any = self._file.pages[self.pages[page]]
        self.check_pixel_count(stored.imagelength, stored.imagewidth)
        with damage_as_value_error():
            if stored.size > _MAX_VALUES:
                raise DataError(f"page {page} has {stored.size} values: at most {_MAX_VALUES}")
            tile = int(stored.tilewidth), int(stored.tilelength)
            check_tiles(stored.imagewidth, stored.imagelength, stored.samplesperpixel, tile)
            array = stored.asarray()
        if not array.size:
            raise ValueError("a page without pixels")
        if array.ndim == 3 and stored.axes[0] == "S":  # one plane per channel
            array = np.moveaxis(array, 0, -1)
        return Pixels(np.atleast_3d(array), any(int(e) in ALPHA for e in stored.extrasamples[-1:]))


@contextmanager
def open_image(source: ImageSource, max_pixels: int, for_page: bool = False) -> Iterator[OpenImage]:
    """Open an image and read only its header; registered readers decode it.

    With `for_page`, the thread keeps a local file of many pages open until it opens another one,
    because finding the pages takes as long as decoding them. Errors in the `with` block are
    raised with the name of the source:

    Raises:
        DataError: the source is missing, damaged, not a regular file, or has a format that is not
            read.
        TooLargeError: the image has too many pixels or pages.
        RemoteError: it cannot be fetched.
        ConfigError: the package for its protocol is missing.
    """
    name = f"{source}: "
    try:
        keeps = for_page and isinstance(source, str | Path)
        opened = _open_kept(source, max_pixels) if keeps else closing(_open(source, max_pixels))
        with opened as image:
            image.check_pixel_count(*image.size)
            yield image
    except (RemoteError, ConfigError):
        raise
    except DataError as error:
        raise type(error)(name + str(error).removeprefix(name)) from error
    except (RefusedFileError, IsADirectoryError) as error:
        raise DataError(f"{name}{error.strerror}") from error
    except FileNotFoundError as error:
        raise DataError(f"{name}the image file does not exist") from error
    except DECODE_ERRORS as error:
        problem = f"{name}the image is damaged or truncated ({short_reason(error)})"
        raise DataError(problem) from error


@contextmanager
def _open_kept(source: Any, max_pixels: int) -> Iterator[OpenImage]:
    status = os.stat(source)
    key = str(source), status.st_size, status.st_mtime_ns, max_pixels
    last, image = vars(_kept).pop("file", (None, None))
    if image is not None and last != key:
        image.close()
    if image is None or last != key:
        image = _open(source, max_pixels)
    with ExitStack() as stack:
        stack.callback(image.close)
        yield image
        if len(image.pages) >= _MIN_KEPT:
            _kept.file = key, image
            stack.pop_all()


def _open(source: ImageSource, max_pixels: int) -> OpenImage:
    path = Path(source) if isinstance(source, (str, Path)) else None
    stream = open_file(path) if path else BytesIO(source.read_bytes())  # type: ignore[union-attr]
    try:
        suffix = Path(str(source)).suffix.lower()
        if suffix in IMAGE_READERS:
            with stream, damage_as_value_error():
                arrays = IMAGE_READERS.get(suffix)(path or stream)
                return ArrayImage(arrays, max_pixels, _MAX_PAGES)
        return _open_by_content(stream, isinstance(source, ImageBytes), max_pixels)
    except BaseException:
        stream.close()
        raise


def _open_by_content(stream: IO[bytes], from_bytes: bool, max_pixels: int) -> OpenImage:
    # Pillow raises an error above twice its limit. The limit applies to the whole process, so it is
    # only ever increased.
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    formats = SAFE_FORMATS if from_bytes else FILE_FORMATS
    limits = max_pixels, _MAX_PAGES_OF_BYTES if from_bytes else _MAX_PAGES
    try:
        opened = open_pillow(stream, formats)
    except Image.DecompressionBombError as error:
        raise too_large(max_pixels, str(error)) from error
    except UnidentifiedImageError as error:
        stream.seek(0)
        if stream.read(4) in _TIFF_STARTS:
            return TiffImage(stream, "the image is damaged or truncated, or", *limits)
        problem = f"none of {', '.join(formats)}, or damaged" if from_bytes else _UNKNOWN
        raise DataError(problem) from error
    with damage_as_value_error():
        if opened.format != "TIFF" or is_read_by_pillow(opened):
            return PillowImage(opened, stream, *limits)
    return TiffImage(stream, "a TIFF with this number of channels or this type of values", *limits)


def image_suffixes() -> set[str]:
    """Return the suffixes of image files: `.jpg`, `.png`, ..., and of registered readers."""
    return pillow_suffixes().union(IMAGE_READERS.names())
