"""Open image files of any format.

Pillow reads common formats, and tifffile the TIFFs that Pillow cannot read without loss. A format
of your own is a function, registered under its suffix:

    @IMAGE_READERS.register(".dcm")
    def read_dicom(file):
        return pydicom.dcmread(file).pixel_array
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from detlite.files.errors import (
    DataError,
    RefusedFileError,
    RemoteError,
    TooLargeError,
    short_reason,
)
from detlite.files.reading import check_regular
from detlite.registry import Registry

from . import decoders, pillow
from .pillow import FILE_FORMATS, SAFE_FORMATS, open_pillow
from .sources import ImageBytes, ImageSource, OpenImage

_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# (offset, bytes) of formats that are not read, to tell them from damaged files.
_OTHER_FORMATS = {
    "HEIC": (4, b"ftyphei"),
    "HEIF": (4, b"ftypmif1"),
    "DICOM": (128, b"DICM"),
    "NumPy": (0, b"\x93NUMPY"),
    "HDF5": (0, b"\x89HDF"),
    "PDF": (0, b"%PDF"),
    "EPS": (0, b"%!PS"),
    "HTML": (0, b"<!DOCTYPE html"),
}
# A reader accepts a path or an open file. It returns an array [H, W] or [H, W, C] of integers or
# floats, or a list of such arrays, one per page.
ImageReader = Callable[[Any], Any]
IMAGE_READERS: Registry[ImageReader] = Registry("image reader")


@contextmanager
def open_image(source: ImageSource, max_pixels: int) -> Iterator[OpenImage]:
    """Open an image and read only its header; registered readers decode it.

    Errors in the `with` block are raised with the name of the source:

    Raises:
        DataError: the source is missing, damaged, not a regular file, or has a format that is not
            read.
        TooLargeError: the image has too many pixels.
        RemoteError: it cannot be fetched.
    """
    name = f"{source}: "
    try:
        with closing(_open(source, max_pixels)) as image:
            yield image
    except RemoteError:
        raise
    except DataError as error:
        raise type(error)(name + str(error).removeprefix(name)) from error
    except (RefusedFileError, IsADirectoryError) as error:
        raise DataError(f"{name}{error.strerror}") from error
    except FileNotFoundError as error:
        raise DataError(f"{name}the image file does not exist") from error
    except decoders.DECODE_ERRORS as error:
        problem = f"{name}the image is damaged or truncated ({short_reason(error)})"
        raise DataError(problem) from error


def _open(source: ImageSource, max_pixels: int) -> OpenImage:
    path = Path(source) if isinstance(source, (str, Path)) else None
    if path is not None:
        check_regular(path)
    suffix = Path(str(source)).suffix.lower()
    file: Any = path or BytesIO(source.read_bytes())  # type: ignore[union-attr]
    if suffix in IMAGE_READERS:
        with decoders.damage_as_value_error():
            image: OpenImage = decoders.ArrayImage(IMAGE_READERS.get(suffix)(file))
    else:
        image = _open_by_content(file, source, max_pixels)
    height, width = image.size
    if height * width > max_pixels:
        image.close()
        raise _too_large(max_pixels, f"{width}x{height}")
    return image


def _open_by_content(file: Path | BytesIO, source: ImageSource, max_pixels: int) -> OpenImage:
    # Pillow raises an error above twice its limit. The limit applies to the whole process, so it is
    # only ever increased.
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    formats = SAFE_FORMATS if isinstance(source, ImageBytes) else FILE_FORMATS
    try:
        opened = open_pillow(file, formats)
    except Image.DecompressionBombError as error:
        raise _too_large(max_pixels, str(error)) from error
    except UnidentifiedImageError as error:
        start = _start(file)
        if start.startswith(_TIFF_STARTS):
            return _open_tiff(file, "the image is damaged or truncated, or")
        for name, (offset, mark) in _OTHER_FORMATS.items():
            if start.startswith(mark, offset):
                raise DataError(
                    f"{name} files are not read. Convert the image, or register a reader for its "
                    "suffix (docs/image_files.md)"
                ) from error
        if isinstance(source, ImageBytes):
            raise DataError(f"none of {', '.join(formats)}, or damaged") from error
        raise DataError(
            "the image is damaged or truncated, or of a format that is not read. Convert it, or "
            "register a reader for its suffix (docs/image_files.md)"
        ) from error
    with decoders.damage_as_value_error():
        if opened.format != "TIFF" or decoders.is_read_by_pillow(opened):
            return decoders.PillowImage(opened, source)
    if isinstance(file, Path):
        opened.close()
    return _open_tiff(file, "a TIFF with this number of channels or this type of values")


def _open_tiff(file: Path | BytesIO, reason: str) -> OpenImage:
    from .tiff import TiffImage

    return TiffImage(file, reason)


def _start(file: Path | BytesIO) -> bytes:
    with file.open("rb") if isinstance(file, Path) else BytesIO(file.getvalue()) as stream:
        return stream.read(256)


def image_suffixes() -> set[str]:
    """Return the suffixes of image files: `.jpg`, `.png`, ..., and of registered readers."""
    return pillow.image_suffixes().union(IMAGE_READERS.names())


def _too_large(max_pixels: int, size: str) -> TooLargeError:
    return TooLargeError(
        f"the image has more than {max_pixels} pixels ({size}). Raise DATASETS.MAX_PIXELS if this "
        "is intended"
    )
