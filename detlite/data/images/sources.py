"""Images as files, stored bytes and folders, and their pixels."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from detlite.files.errors import TooLargeError

# Errors of readers for truncated or damaged files; NotImplementedError: DDS and BLP files of types
# that Pillow does not read.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, NotImplementedError)


@contextmanager
def damage_as_value_error() -> Iterator[None]:
    """Raise the many errors of readers for damaged files as ValueError."""
    try:
        yield
    except DECODE_ERRORS:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class StoredImage(Protocol):
    """An image that is not a local file; messages name it by its `str`."""

    def read_bytes(self) -> bytes:
        """Return the content of the image file. Raises FileNotFoundError, or DataError."""


@dataclass(frozen=True)
class ImageBytes:
    """The content of an image file, as a StoredImage; messages contain `name`."""

    data: bytes
    name: str = "bytes"

    def __str__(self) -> str:
        return self.name

    def read_bytes(self) -> bytes:
        return self.data


ImageSource = str | Path | StoredImage
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Pixels:
    """Stored pixels [H, W, C] of any type; `alpha`: the last channel is opacity."""

    array: np.ndarray
    alpha: bool = False


class OpenImage:
    """An image file whose header was read.

    Args:
        max_pixels: limit of the number of pixels of each page.
        max_pages: limit of the number of pages.

    Attributes:
        size: stored (height, width) of the first page.
        pages: positions of the pages in the file, without thumbnails.
        channels: the number of stored channels; 0: unknown before decoding.
        is_common: True if the header says that a model for 8-bit RGB can read it.
        is_complete: True if the file has the usual end of its format.
    """

    size: Size
    pages: Sequence[int] = (0,)
    channels = 0
    is_common = False
    is_complete = False

    def __init__(self, max_pixels: int, max_pages: int) -> None:
        self._max_pixels, self._max_pages = max_pixels, max_pages

    def close(self) -> None:
        """Close the file."""

    def orientation(self, header_only: bool = False) -> int:
        """Return the EXIF orientation, 1 to 8; 1 (upright) if missing or unreadable."""
        return 1

    def pixels(self, page: int, min_size: Size | None = None) -> Pixels:
        """Decode a page; a JPEG possibly at a reduced size of at least the stored `min_size`.

        Raises TooLargeError before decoding if the page has too many pixels.
        """
        raise NotImplementedError

    def check_pixel_count(self, height: int, width: int) -> None:
        """Raise TooLargeError if a page has too many pixels."""
        if height * width > self._max_pixels:
            raise too_large(self._max_pixels, f"{width}x{height}")

    def check_page_count(self, count: int) -> None:
        """Raise TooLargeError if there are too many pages, because each page costs time."""
        if count > self._max_pages:
            raise TooLargeError(f"the image has {count} pages, more than {self._max_pages}")


def too_large(max_pixels: int, size: str) -> TooLargeError:
    """Return the error of an image with more than `max_pixels` pixels."""
    return TooLargeError(
        f"the image has more than {max_pixels} pixels ({size}). Raise DATASETS.MAX_PIXELS if this "
        "is intended"
    )


class StoredFolder(Protocol):
    """A folder of stored images; `str` identifies it."""

    def __truediv__(self, name: str, /) -> StoredImage:
        """Return the image with a file name."""


ImageFolder: TypeAlias = Path | StoredFolder
