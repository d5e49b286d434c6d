"""Images that Pillow reads, by the decoders of a list only.

Pillow also has decoders that start programs: for EPS, whatever the file's suffix is, it starts
Ghostscript, which runs the program in the file. No other module calls `Image.open`.
"""

import contextlib
import io
import itertools
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile

from detlite.files.errors import DataError
from detlite.files.reading import check_regular

from .sources import OpenImage, Pixels, Size, damage_as_value_error

# Formats accepted as bytes, which may come from anybody.
SAFE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
# Formats accepted as files. None of their decoders starts a program or follows references.
FILE_FORMATS = (
    *SAFE_FORMATS,
    *("JPEG2000", "AVIF", "PPM", "TGA", "PSD", "DDS", "DIB", "PCX", "SGI", "QOI", "ICO", "SUN"),
)
_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_ORIENTATION = 0x0112  # EXIF tag
# TIFF tags and values (TIFF 6.0).
_SUBFILE_TYPE, _BITS, _SAMPLES, _TILE_WIDTH, _TILE_LENGTH, _EXTRA = 254, 258, 277, 322, 323, 338
NO_PAGE, ALPHA = 0b101, (1, 2)  # a thumbnail or a mask; opacity
_MAX_TILE_VALUES = 1 << 26  # of a tile that is larger than its image
# Formats with further images that are previews or layers, not pages.
_UNPAGED = ("MPO", "PSD")
_MIN_FRAME = (
    10  # bytes of a frame, at least; the number of a PNG's frames is a number in its header
)
_BAND_PIXELS = 1 << 24  # of a large image, copied at a time
# Pillow modes that keep their channels; all others become RGB.
_ARRAY_MODES = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "RGBa": "RGBA"}
_GRAY = 128  # libjpeg's value for missing data
# Bytes without a JPEG marker. They change the pixels that libjpeg would otherwise fill in.
_MORE_DATA = bytes(range(1, 255)) * 4

# Silence Pillow about TIFFs that it cannot read: they raise an error, or tifffile reads them.
logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)


def open_pillow(
    file: Path | IO[bytes], formats: Sequence[str] = FILE_FORMATS
) -> ImageFile.ImageFile:
    """Open an image of one of the formats. Raises OSError, as `Image.open` does."""
    if isinstance(file, Path):
        check_regular(file)
    return Image.open(file, formats=[name for name in formats if name in _installed()])


def pillow_suffixes() -> set[str]:
    """Return the suffixes of FILE_FORMATS: `.jpg`, `.png`, ..."""
    suffixes, installed = Image.registered_extensions(), _installed()
    return {suffix for suffix, name in suffixes.items() if name in installed}


@cache
def _installed() -> set[str]:
    """Return the formats that this installation of Pillow reads."""
    Image.init()
    return {name for name in FILE_FORMATS if name in Image.OPEN}


class PillowImage(OpenImage):
    """An image file read by Pillow.

    Args:
        file: the opened image.
        stream: the open file that it was opened from.
        max_pixels, max_pages: see `OpenImage`.
    """

    def __init__(
        self, file: ImageFile.ImageFile, stream: IO[bytes], max_pixels: int, max_pages: int
    ) -> None:
        super().__init__(max_pixels, max_pages)
        self._file, self._stream = file, stream
        # Pillow keeps only the high bytes of several channels.
        self._deep_color = file.mode[0] != "I" and str(file.tile[-1:]).endswith(";16B')]")
        self.is_common = not self._deep_color and file.mode[0] not in "IF"
        if file.format == "TIFF":
            self.pages = self._tiff_pages()
            file.seek(self.pages[0])
        elif file.format not in _UNPAGED and (count := getattr(file, "n_frames", 1)) > 1:
            self.check_page_count(count)
            position = stream.tell()
            size = stream.seek(0, io.SEEK_END)
            stream.seek(position)
            if count * _MIN_FRAME > size:
                raise DataError(
                    f"the image is damaged: its header announces {count} frames in {size} bytes"
                )
            self.pages = range(count)
        self.size = file.height, file.width
        self.channels = len(file.getbands())

    def close(self) -> None:
        self._file.close()
        self._stream.close()

    def _tiff_pages(self) -> list[int]:
        """Return the positions of pages that are no thumbnails; Pillow would count them all."""
        pages: list[int] = []
        with contextlib.suppress(EOFError):
            for page in itertools.count():
                self.check_page_count(page)
                self._file.seek(page)
                tags = self._file.tag_v2  # type: ignore[attr-defined]
                if not int(tags.get(_SUBFILE_TYPE, 0)) & NO_PAGE:
                    pages.append(page)
        return pages

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        marker = _END_MARKERS.get(self._file.format or "")
        if marker is None:
            return False
        position = self._stream.tell()
        self._stream.seek(-len(marker), io.SEEK_END)
        end = self._stream.read()
        self._stream.seek(position)
        return end == marker

    def orientation(self, header_only: bool = False) -> int:
        file = self._file
        # Looking for it after the pixels of a PNG would decode them.
        skipped = header_only and file.format == "PNG" and "exif" not in file.info
        if file.format == "TIFF" or skipped:  # Pillow applies that of a TIFF
            return 1
        try:
            return int(file.getexif().get(_ORIENTATION, 1))
        except Exception:  # of many types, and the pixels may still be valid
            return 1

    def pixels(self, page: int, min_size: Size | None = None) -> Pixels:
        file = self._file
        with damage_as_value_error():
            if len(self.pages) > 1:
                file.seek(self.pages[page])
            self.check_pixel_count(file.height, file.width)
            if min_size is not None:
                file.draft(None, min_size[::-1])
            tags = getattr(file, "tag_v2", {})
            tile = tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0)
            check_tiles(file.width, file.height, tags.get(_SAMPLES, 1), tile)
            file.load()  # the header may continue after the pixels
        if self._deep_color:
            return Pixels(self._high_and_low_bytes(), alpha=file.mode.endswith("A"))
        if self._lacks_data(min_size):
            raise DataError("the image is damaged or truncated (data are missing)")
        return pillow_pixels(file)

    def _high_and_low_bytes(self) -> np.ndarray:
        if self._file.mode == "LA":
            raise DataError("PNGs of gray and alpha with 16 bits are not supported")
        with open_pillow(io.BytesIO(self._content())) as low:
            # As if they were little-endian, so that Pillow keeps the other byte.
            low.tile = [low.tile[-1]._replace(args=f"{low.mode};16L")]
            return np.asarray(self._file).astype(np.uint16) << 8 | np.asarray(low)

    def _lacks_data(self, min_size: Size | None) -> bool:
        """True if a decoded JPEG lacks data although it ends with the end marker.

        libjpeg reports nothing and fills the rest with gray. If an image ends in this gray,
        decoding it with more data before the end marker changes the pixels only if data are
        missing. The rest of a progressive JPEG is blurred instead, which this does not detect.
        """
        file = self._file
        last = file.width - 1, file.height - 1
        if file.format != "JPEG" or file.getpixel(last) not in (_GRAY, (_GRAY,) * 3):
            return False
        data = self._content()
        end = data.rfind(_END_MARKERS["JPEG"])
        with open_pillow(io.BytesIO(data[:end] + _MORE_DATA + data[end:])) as longer:
            if min_size is not None:
                longer.draft(None, min_size[::-1])
            return longer.tobytes() != file.tobytes()

    def _content(self) -> bytes:
        self._stream.seek(0)
        return self._stream.read()


def pillow_pixels(image: Image.Image) -> Pixels:
    """Return the pixels of a Pillow image; palettes and other color spaces become RGB."""
    if image.mode.startswith(("I", "F")):
        return Pixels(np.asarray(image)[:, :, None])
    mode = _ARRAY_MODES.get(image.mode, "RGB")
    # np.asarray copies the pixels twice, so large images are copied in bands.
    rows = max(_BAND_PIXELS // max(image.width, 1), 1)
    bands = [(0, top, image.width, min(top + rows, image.height))
             for top in range(0, image.height, rows)]  # fmt: skip
    array = np.empty((image.height, image.width, len(mode)), np.uint8)
    for band in bands:
        part = image.crop(band) if len(bands) > 1 else image
        part = part if part.mode == mode else part.convert(mode)
        array[band[1] : band[3]] = np.atleast_3d(np.asarray(part))
    return Pixels(array, alpha=mode.endswith("A"))


def is_read_by_pillow(tiff: Any) -> bool:
    """True if Pillow reads all channels and bits of a TIFF."""
    tags = tiff.tag_v2
    samples, bits, extra = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,))), tags.get(_EXTRA, ())
    if samples == 1:
        return True
    colors = samples - len(extra)
    return bits <= 8 and (not extra or extra[-1] in ALPHA) and colors in (1, 3, 4)


def check_tiles(width: int, height: int, samples: int, tile: tuple[int, int]) -> None:
    """Raise ValueError if a tile of (width, height) needs much more memory than its whole image."""
    values = tile[0] * tile[1] * samples
    if values > max(width * height * samples, _MAX_TILE_VALUES):
        raise ValueError(
            f"its tiles of {tile[0]}x{tile[1]} are larger than {width}x{height} pixels"
        )
