"""Decoders of opened image files: Pillow, tifffile, and registered readers."""

import io
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from detlite.files.errors import DataError

from .pillow import check_page, open_pillow
from .sources import ImageSource, OpenImage, Pixels

# Errors of readers for truncated or damaged files; NotImplementedError: DDS and BLP files of types
# that Pillow does not read.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, NotImplementedError)
_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_ORIENTATION = 0x0112  # EXIF tag
# TIFF tags and values (TIFF 6.0).
_SUBFILE_TYPE, _BITS, _SAMPLES, _EXTRA = 254, 258, 277, 338
NO_PAGE, ALPHA = 0b101, (1, 2)  # a thumbnail or a mask; opacity
# Formats with further images that are previews or layers, not pages.
_UNPAGED = ("MPO", "PSD")
# Pillow modes that keep their channels; all others become RGB.
_ARRAY_MODES = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "RGBa": "RGBA"}
_GRAY = 128  # libjpeg's value for missing data
# Bytes without a JPEG marker. They change the pixels that libjpeg would otherwise fill in.
_MORE_DATA = bytes(range(1, 255)) * 4

# Silence Pillow about TIFFs that it cannot read: they raise an error, or tifffile reads them.
logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)


@contextmanager
def damage_as_value_error() -> Iterator[None]:
    """Raise the many errors of readers for damaged files as ValueError."""
    try:
        yield
    except DECODE_ERRORS:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class ArrayImage(OpenImage):
    """An image of a registered reader."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = [np.asarray(a) for a in (arrays if isinstance(arrays, list) else [arrays])]
        for array in self._arrays:
            if array.ndim not in (2, 3) or array.dtype.kind not in "buif" or not array.size:
                raise ValueError(
                    "its reader must return arrays [H, W] or [H, W, C] of numbers, not "
                    f"{array.dtype} {list(array.shape)}"
                )
        self.size = self._arrays[0].shape[:2]
        self.pages = range(len(self._arrays))

    def pixels(self, page: int, min_size: tuple[int, int] | None = None) -> Pixels:
        return Pixels(np.atleast_3d(self._arrays[page]))


class PillowImage(OpenImage):
    """An image file read by Pillow."""

    def __init__(self, file: ImageFile.ImageFile, source: ImageSource) -> None:
        self.file, self._source = file, source
        self.size = file.height, file.width
        self.channels = len(file.getbands())
        # Pillow keeps only the high bytes of several channels.
        self._deep_color = file.mode[0] != "I" and str(file.tile[-1:]).endswith(";16B')]")
        self.is_common = not self._deep_color and file.mode[0] not in "IF"
        if file.format not in _UNPAGED and (count := getattr(file, "n_frames", 1)) > 1:
            self.pages = range(count)
            if file.format == "TIFF":
                self.pages = [page for page in self.pages if not self._tag(page) & NO_PAGE]
                file.seek(self.pages[0])

    def close(self) -> None:
        self.file.close()

    def _tag(self, page: int) -> int:
        self.file.seek(page)
        return int(self.file.tag_v2.get(_SUBFILE_TYPE, 0))  # type: ignore[attr-defined]

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        marker = _END_MARKERS.get(self.file.format or "")
        if marker is None or self.file.fp is None:
            return False
        self.file.fp.seek(-len(marker), io.SEEK_END)
        return self.file.fp.read() == marker

    def orientation(self, header_only: bool = False) -> int:
        file = self.file
        # Looking for it after the pixels of a PNG would decode them.
        skipped = header_only and file.format == "PNG" and "exif" not in file.info
        if file.format == "TIFF" or skipped:  # Pillow applies that of a TIFF
            return 1
        try:
            return int(file.getexif().get(_ORIENTATION, 1))
        except (*DECODE_ERRORS, TypeError, KeyError):  # the pixels may still be valid
            return 1

    def pixels(self, page: int, min_size: tuple[int, int] | None = None) -> Pixels:
        file = self.file
        with damage_as_value_error():
            if len(self.pages) > 1:
                file.seek(self.pages[page])
            if min_size is not None:
                file.draft(None, min_size[::-1])
            check_page(file)
            file.load()  # the header may continue after the pixels
        if self._deep_color:
            return Pixels(self._high_and_low_bytes(), alpha=file.mode.endswith("A"))
        if self._lacks_data(min_size):
            raise DataError("the image is damaged or truncated (data are missing)")
        return pillow_pixels(file)

    def _high_and_low_bytes(self) -> np.ndarray:
        if self.file.mode == "LA":
            raise DataError("PNGs of gray and alpha with 16 bits are not supported")
        with open_pillow(BytesIO(self._content())) as low:
            # As if they were little-endian, so that Pillow keeps the other byte.
            low.tile = [low.tile[-1]._replace(args=f"{low.mode};16L")]
            return np.asarray(self.file).astype(np.uint16) << 8 | np.asarray(low)

    def _lacks_data(self, min_size: tuple[int, int] | None) -> bool:
        """True if a decoded JPEG lacks data although it ends with the end marker.

        libjpeg reports nothing and fills the rest with gray. If an image ends in this gray,
        decoding it with more data before the end marker changes the pixels only if data are
        missing. The rest of a progressive JPEG is blurred instead, which this does not detect.
        """
        last = self.file.width - 1, self.file.height - 1
        if self.file.format != "JPEG" or self.file.getpixel(last) not in (_GRAY, (_GRAY,) * 3):
            return False
        data = self._content()
        end = data.rfind(_END_MARKERS["JPEG"])
        with open_pillow(BytesIO(data[:end] + _MORE_DATA + data[end:])) as longer:
            if min_size is not None:
                longer.draft(None, min_size[::-1])
            return longer.tobytes() != self.file.tobytes()

    def _content(self) -> bytes:
        source = self._source
        return Path(source).read_bytes() if isinstance(source, str) else source.read_bytes()


def pillow_pixels(image: Image.Image) -> Pixels:
    """Return the pixels of a Pillow image; palettes and other color spaces become RGB."""
    if image.mode.startswith(("I", "F")):
        return Pixels(np.asarray(image)[:, :, None])
    mode = _ARRAY_MODES.get(image.mode, "RGB")
    return Pixels(np.atleast_3d(np.asarray(image.convert(mode))), alpha=mode.endswith("A"))


def is_read_by_pillow(tiff: Any) -> bool:
    """True if Pillow reads all channels and bits of a TIFF."""
    tags = tiff.tag_v2
    samples, bits, extra = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,))), tags.get(_EXTRA, ())
    if samples == 1:
        return True
    colors = samples - len(extra)
    return bits <= 8 and (not extra or extra[-1] in ALPHA) and colors in (1, 3, 4)
