"""TIFFs that Pillow cannot read without loss: any number of channels of any type."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from detlite.files.errors import DataError

from .decoders import ALPHA, NO_PAGE, damage_as_value_error
from .pillow import check_tiles
from .sources import OpenImage, Pixels

_MAX_VALUES = 1 << 31
_MAX_PAGES = 256  # of a TIFF from bytes


class TiffImage(OpenImage):
    """A TIFF read by tifffile: any number of channels of any type."""

    def __init__(self, file: Path | BytesIO, reason: str) -> None:
        try:
            import tifffile
        except ImportError as error:
            raise DataError(f"{reason} needs tifffile: pip install 'detlite[tiff]'") from error
        max_pages = 1 << 20
        if not isinstance(file, Path):  # bytes may come from anybody, and each page costs time
            file.seek(0)
            max_pages = _MAX_PAGES
        with damage_as_value_error():
            self._file = tifffile.TiffFile(file)
            pages: list[Any] = []
            offsets = set[int]()
            for page in self._file.pages:
                if page.offset in offsets or len(offsets) == max_pages:
                    raise ValueError(f"its pages form a cycle, or are more than {max_pages}")
                offsets.add(page.offset)
                pages.append(page)
            self.pages = [i for i, page in enumerate(pages) if not page.subfiletype & NO_PAGE]
            sizes = [(pages[i].imagelength, pages[i].imagewidth) for i in self.pages]
            self.size = sizes[0]
            if not all(isinstance(side, int) and side > 0 for size in sizes for side in size):
                raise ValueError("a page without pixels, or with several sizes")

    def close(self) -> None:
        self._file.close()

    def pixels(self, page: int, min_size: tuple[int, int] | None = None) -> Pixels:
        stored: Any = self._file.pages[self.pages[page]]
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
