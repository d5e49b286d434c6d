"""Picture files of any origin: opened within limits, and what their bytes tell of them."""

from __future__ import annotations

import io
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageFile, UnidentifiedImageError

from detlite.data.errors import DataError, TooLargeError
from detlite.data.remote.paths import StoredPicture

MAX_PIXELS = 178_956_970  # Pillow's own limit

# What Pillow raises on files that are cut off or damaged, depending on format and place.
# NotImplementedError: of DDS and BLP files of a kind that it does not read.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, NotImplementedError)
_ORIENTATION = 0x0112  # EXIF tag
TRANSPOSED = (5, 6, 7, 8)  # orientations that swap width and height
_GREY = 128  # what libjpeg fills in where data are missing
# No marker, and no code that leaves what it fills in as it is.
_MORE_DATA = bytes(range(1, 255)) * 4
LAST_BYTES = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
# What is decoded of bytes, which may come from anybody: formats without a program in them.
FORMATS_OF_BYTES = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")


@dataclass(frozen=True)
class PictureBytes:
    """What a picture file holds, as a StoredPicture."""

    data: bytes

    def __str__(self) -> str:
        return "bytes"

    def read_bytes(self) -> bytes:
        return self.data

    def forget(self) -> bool:
        return False


PictureFile = str | Path | StoredPicture


def open_picture(path: PictureFile, max_pixels: int) -> ImageFile.ImageFile:
    """A picture of which no more than the header is read.

    Raises:
        DataError: it is no regular file, which might never end, or is of no format that is read.
        TooLargeError: it has more than `max_pixels`.
    """
    if isinstance(path, (str, Path)) and not stat.S_ISREG(Path(path).stat().st_mode):
        raise DataError(f"{path}: is no regular file")
    source = path if isinstance(path, (str, Path)) else io.BytesIO(path.read_bytes())
    # Pillow refuses from twice its own limit on. That counts for the whole process, so it is
    # never lowered.
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    formats = FORMATS_OF_BYTES if isinstance(path, PictureBytes) else None
    try:
        file = Image.open(source, formats=formats)
    except UnidentifiedImageError as error:
        if formats is None:
            raise
        raise DataError(f"{path}: is none of {', '.join(formats)}, or is damaged") from error
    except Image.DecompressionBombError as error:
        raise TooLargeError(f"{path}: {_too_large(max_pixels)} ({error})") from error
    if file.width * file.height > max_pixels:
        file.close()
        raise TooLargeError(f"{path}: {_too_large(max_pixels)} ({file.width}x{file.height})")
    return file


def _too_large(max_pixels: int) -> str:
    return (
        f"the picture has more than {max_pixels} pixels; if it is meant to, raise "
        "DATASETS.MAX_PIXELS"
    )


def is_cut_jpeg(file: Image.Image, path: PictureFile) -> bool:
    """Whether data are missing in a JPEG that was decoded, and that ends as JPEGs do.

    libjpeg tells nobody and fills the rest with grey. A picture that ends in this grey and lacks
    nothing is the same with more data before its end. Of progressive ones the rest is blurred
    instead of grey, which is not noticed.
    """
    if file.format != "JPEG" or file.getpixel((file.width - 1, file.height - 1)) not in (
        _GREY,
        (_GREY,) * 3,
    ):
        return False
    data = Path(path).read_bytes() if isinstance(path, str) else path.read_bytes()
    end = data.rfind(LAST_BYTES["JPEG"])
    with Image.open(io.BytesIO(data[:end] + _MORE_DATA + data[end:])) as longer:
        return longer.tobytes() != file.tobytes()


def orientation(file: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1, upright, where there is none or it cannot be read."""
    if file.format == "TIFF":  # which Pillow turns itself
        return 1
    try:
        return int(file.getexif().get(_ORIENTATION, 1))
    except (*BROKEN, TypeError, KeyError):  # the pixels may be sound
        return 1
