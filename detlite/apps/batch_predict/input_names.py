"""List the names of images, their pages and videos that `detlite predict` processes."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import count_pages
from detlite.files.errors import DataError
from detlite.inference.inputs import expand_input, is_any_url

_PAGED_SUFFIXES = (".tif", ".tiff", ".gif", ".webp", ".png", ".apng", ".avif")


def list_inputs(
    inputs: Sequence[str], options: ImageOptions, exclude: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the names of images and videos, in the order of `inputs`, see `expand_input`.

    A local file of several pages has a name for each: `scan.tif#page=1`, ... Only files of formats
    that can have pages are opened. A damaged file is reported when it is read.
    """
    for source in inputs:
        found = expand_input(source, exclude)
        for name in [found] if isinstance(found, str) else found:
            pages = 1
            if name.lower().endswith(_PAGED_SUFFIXES) and not is_any_url(name):
                with suppress(DataError):
                    pages = count_pages(name, options)
            yield from [name] if pages == 1 else (f"{name}#page={k + 1}" for k in range(pages))
