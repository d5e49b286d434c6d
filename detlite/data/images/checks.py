"""Check the image files of a dataset once, and again when their folders have changed."""

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data import cache
from detlite.data.errors import RemoteError
from detlite.data.index.annotation_index import AnnotationIndex
from detlite.data.remote.locations import location_id

from .pixels import ImageOptions
from .reading import image_problem
from .sources import ImageArchive, ImageFolder, image_file_of

_VERSION = 3  # increase it with every change of the results of `image_problem` or of the notes
_GROUP = 4096  # images that are passed to the threads together
_logger = logging.getLogger(__name__)


def find_bad_images(
    index: AnnotationIndex, folder: ImageFolder, options: ImageOptions
) -> dict[int, str]:
    """Return the problems of image files by their number in the index.

    All images are checked once. A note in the cache lists the bad ones, which are checked again.
    The note is valid until a file in the image folders is added, removed or renamed, and
    permanently for a folder at a URL.
    """
    notes = cache.folder()
    if notes is None:
        return dict(_problems(index, folder, options, np.arange(len(index.image_ids))))
    images = folder.id if isinstance(folder, ImageArchive) else location_id(folder)
    key = cache.key(index.table["hash"], index.table["by_url"], images, *astuple(options), _VERSION)
    note_file = notes / f"{key}.pictures"
    with cache.exclusive_lock(note_file.with_suffix(".lock")):
        stamps, note = _folder_stamps(index, folder), cache.read_note(note_file)
        valid = stamps is not None and isinstance(note, dict) and note.get("folders") == stamps
        numbers = np.array(note["bad"], np.int64) if valid else np.arange(len(index.image_ids))
        problems = dict(_problems(index, folder, options, numbers))
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
    index: AnnotationIndex, folder: ImageFolder, options: ImageOptions, numbers: np.ndarray
) -> Iterator[tuple[int, str]]:
    def problem(number: int) -> str | None:
        image = index.image(number)
        size = image["height"], image["width"]
        try:
            text = image_problem(image_file_of(folder, image), size, options)
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
