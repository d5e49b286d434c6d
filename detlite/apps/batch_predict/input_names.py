"""List the names of images, their pages and videos that `detlite predict` processes."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import count_pages
from detlite.files.errors import DataError
from detlite.inference.inputs import expand_input, is_any_url

_PAGED_SUFFIXES = (".tif", ".tiff", ".gif", ".webp", ".png", ".apng", ".avif")


def list_inputs(inputs: Sequence[str], exclude: Sequence[Path] = ()) -> list[str]:
    """List the names of images and videos, in the order of `inputs`, see `expand_input`."""
    names: list[str] = []
    for source in inputs:
        found = expand_input(source, exclude)
        names += [found] if isinstance(found, str) else found
    return names


def expand_pages(images: Sequence[str], options: ImageOptions) -> list[str]:
    """Replace local files of several pages by one name for each: `scan.tif#page=1`, ...

    Only files of formats that can have pages are opened. A damaged file is reported when it is
    read.
    """
    expanded: list[str] = []
    for image in images:
        pages = 1
        if image.lower().endswith(_PAGED_SUFFIXES) and not is_any_url(image):
            with suppress(DataError):
                pages = count_pages(image, options)
        expanded += [image] if pages == 1 else [f"{image}#page={k + 1}" for k in range(pages)]
    return expanded
