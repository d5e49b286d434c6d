"""Open images with Pillow, by the decoders of a list only.

Pillow also has decoders that start programs: for EPS, whatever the file's suffix is, it starts
Ghostscript, which runs the program in the file. No other module calls `Image.open`.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

from PIL import Image, ImageFile

from detlite.files.reading import check_regular

# Formats accepted as bytes, which may come from anybody.
SAFE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
# Formats accepted as files. None of their decoders starts a program or follows references.
FILE_FORMATS = (
    *SAFE_FORMATS,
    *("JPEG2000", "AVIF", "PPM", "TGA", "PSD", "DDS", "DIB", "PCX", "SGI", "QOI", "ICO", "SUN"),
)
# TIFF tags (TIFF 6.0).
_SAMPLES, _TILE_WIDTH, _TILE_LENGTH = 277, 322, 323
_MAX_TILE_VALUES = 1 << 26  # of a tile that is larger than its image


def open_pillow(
    file: Path | IO[bytes], formats: Sequence[str] = FILE_FORMATS
) -> ImageFile.ImageFile:
    """Open an image of one of the formats. Raises OSError, as `Image.open` does."""
    if isinstance(file, Path):
        check_regular(file)
    return Image.open(file, formats=[name for name in formats if name in _installed()])


def image_suffixes() -> set[str]:
    """Return the suffixes of FILE_FORMATS: `.jpg`, `.png`, ..."""
    suffixes, installed = Image.registered_extensions(), _installed()
    return {suffix for suffix, name in suffixes.items() if name in installed}


@cache
def _installed() -> set[str]:
    """Return the formats that this installation of Pillow reads."""
    Image.init()
    return {name for name in FILE_FORMATS if name in Image.OPEN}


def check_tiles(width: int, height: int, samples: int, tile: tuple[int, int]) -> None:
    """Raise ValueError if a tile of (width, height) needs much more memory than its whole image."""
    values = tile[0] * tile[1] * samples
    if values > max(width * height * samples, _MAX_TILE_VALUES):
        raise ValueError(
            f"its tiles of {tile[0]}x{tile[1]} are larger than {width}x{height} pixels"
        )


def check_page(image: ImageFile.ImageFile) -> None:
    """Check the tiles of the current page of a TIFF, see `check_tiles`."""
    tags = getattr(image, "tag_v2", {})
    tile = tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0)
    check_tiles(image.width, image.height, tags.get(_SAMPLES, 1), tile)
