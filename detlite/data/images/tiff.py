"""TIFFs that Pillow cannot read without loss: any number of channels of any type."""

from typing import IO, Any

import numpy as np

from detlite.files.errors import DataError

from .pillow import ALPHA, NO_PAGE, check_tiles
from .sources import OpenImage, Pixels, Size, damage_as_value_error

_MAX_VALUES = 1 << 31


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
