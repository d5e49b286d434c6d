"""Check the image files of a dataset once, and again when their folders have changed."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data import cache
from detlite.data.errors import RemoteError
from detlite.data.findings import Finding
from detlite.data.index.annotation_index import AnnotationIndex
from detlite.data.remote.locations import location_id

from .pixels import ImageOptions
from .reading import image_problem, unclear_orientation
from .sources import ImageArchive, ImageFolder, ImageSource, Size, image_file_of

UPRIGHT = (
    "Annotations are used for the upright images. If they count stored pixels, add "
    "MODEL.CONVENTION_OVERRIDE exif_orientation=False to the `detlite init` command."
)
_VERSION = 3  # increase it with every change of the results of `image_problem` or of the notes
_GROUP = 4096  # images that are passed to the threads together
_Check = Callable[[ImageSource, Size, ImageOptions], str | None]
_logger = logging.getLogger(__name__)


def find_bad_images(
    index: AnnotationIndex, folder: ImageFolder, options: ImageOptions
) -> dict[int, str]:
    """Return the problems of image files by their number in the index.

    All images are checked once. A note in the cache lists the bad ones, which are checked again.
    The note is valid until a file in the image folders is added, removed or renamed, and
    permanently for a folder at a URL.
    """
    return _find(image_problem, index, folder, options)


def orientation_findings(
    index: AnnotationIndex, folder: ImageFolder, options: ImageOptions
) -> list[Finding]:
    """Report local images that an EXIF orientation changes without changing their size."""
    local = isinstance(folder, Path) and options.exif_orientation
    if not (local and (turned := _find(unclear_orientation, index, folder, options))):
        return []
    what, example = "images whose EXIF orientation keeps their size", next(iter(turned.values()))
    return [Finding(what, UPRIGHT, len(turned), "image", example)]


def _find(
    check: _Check, index: AnnotationIndex, folder: ImageFolder, options: ImageOptions
) -> dict[int, str]:
    """Return what a check of all images returns, by their number in the index."""
    notes = cache.folder()
    if notes is None:
        return dict(_problems(check, index, folder, options, np.arange(len(index.image_ids))))
    images = folder.id if isinstance(folder, ImageArchive) else location_id(folder)
    table, checked = index.table, (check.__name__, *astuple(options), _VERSION)
    key = cache.key(table["hash"], table["by_url"], images, *checked)
    note_file = notes / f"{key}.pictures"
    with cache.exclusive_lock(note_file.with_suffix(".lock")):
        stamps, note = _folder_stamps(index, folder), cache.read_note(note_file)
        valid = stamps is not None and isinstance(note, dict) and note.get("folders") == stamps
        numbers = np.array(note["bad"], np.int64) if valid else np.arange(len(index.image_ids))
        problems = dict(_problems(check, index, folder, options, numbers))
        if stamps is not None and (not valid or len(problems) < len(numbers)):
            with contextlib.suppress(OSError):
                cache.write_note(note_file, {"folders": stamps, "bad": list(problems)})
        return problems


def _folder_stamps(index: AnnotationIndex, folder: ImageFolder) -> dict[str, Any] | None:
    """Return the stamps of the image folders; None if one was modified too recently."""
    if not isinstance(folder, Path):
        return {}
    stamps: dict[str, list[int] | None] = {}
    for name in index.table["folders"]:
        try:
            stamps[name] = cache.file_stamp(folder / name)
        except OSError:
            stamps[name] = []  # missing, or not readable
    return None if None in stamps.values() else stamps


def _problems(
    check: _Check,
    index: AnnotationIndex,
    folder: ImageFolder,
    options: ImageOptions,
    numbers: np.ndarray,
) -> Iterator[tuple[int, str]]:
    def problem(number: int) -> str | None:
        image = index.image(number)
        size = image["height"], image["width"]
        try:
            text = check(image_file_of(folder, image), size, options)
        except RemoteError as error:
            raise RemoteError(f"{error} (image id {image['id']})") from error
        return text and f"image {image['id']} ({image['file_name']}): {text}"

    if len(numbers) and not isinstance(folder, Path):
        _logger.info("%s: checking all %d images once", folder, len(numbers))
    # Threads, because a network disk mostly waits.
    with ThreadPoolExecutor(8 if isinstance(folder, Path) else 32) as pool:
        for first in range(0, len(numbers), _GROUP):
            group = numbers[first : first + _GROUP].tolist()
            texts = zip(group, pool.map(problem, group), strict=True)
            yield from ((number, text) for number, text in texts if text)
