"""The pictures of an index: checked once, and again when their folders have changed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.errors import RemoteError
from detlite.data.loading.image_reading import image_problem
from detlite.data.remote.paths import address
from detlite.data.remote.shards import Folder, ShardFolder, picture_of

from .cache import cache_folder, identity, locked, read_note, stamp, write_note
from .index import AnnotationIndex

_CHECKS = 1  # raise it with any change of what `image_problem` finds
_Limits = tuple[int, int, bool]  # what `image_problem` takes
_GROUP = 4096  # pictures that threads are given at once
_logger = logging.getLogger(__name__)


def picture_problems(
    index: AnnotationIndex, folder: Folder, max_pixels: int, bits: int, exif_orientation: bool
) -> dict[int, str]:
    """What is wrong with pictures, by their number in the index.

    All of them are looked at once. A note of that, which holds as long as no picture is added to
    their folders, removed or renamed, names the unsound ones, and these alone are looked at again:
    they may have been mended in place. One that was damaged in place shows when it is decoded. Of a
    folder at a URL the note holds for good.

    Args:
        index: of the annotation file.
        folder: that its file names are relative to.
        max_pixels, bits, exif_orientation: of a picture, see `read_image`.

    Raises:
        RemoteError: of some it cannot be told.
    """
    limits = max_pixels, bits, exif_orientation
    cache = cache_folder()
    if cache is not None:
        parts = (
            index.file.table["hash"],
            index.file.table["by_url"],
            folder.address if isinstance(folder, ShardFolder) else address(folder),
        )
        note = cache / f"{identity(*parts, *limits, _CHECKS)}.pictures"
        with locked(note.with_suffix(".lock")):
            return _noted_problems(index, folder, limits, note)
    return dict(_problems(index, folder, limits, np.arange(len(index.image_ids))))


def _noted_problems(
    index: AnnotationIndex, folder: Folder, limits: _Limits, note: Path
) -> dict[int, str]:
    now = _stamps(index, folder)
    noted = read_note(note)
    known = now is not None and isinstance(noted, dict) and noted.get("folders") == now
    numbers = np.array(noted["unsound"], np.int64) if known else np.arange(len(index.image_ids))
    problems = dict(_problems(index, folder, limits, numbers))
    if now is not None and (not known or len(problems) < len(numbers)):
        with contextlib.suppress(OSError):
            write_note(note, {"folders": now, "unsound": list(problems)})
    return problems


def _stamps(index: AnnotationIndex, folder: Folder) -> dict[str, Any] | None:
    """What changes when one of the folders does; None: too new to tell."""
    if not isinstance(folder, Path):
        return {}
    stamps: dict[str, list[int] | None] = {}
    for name in index.folders:
        try:
            stamps[name] = stamp(folder / name)
        except OSError:
            stamps[name] = []  # not there
    return None if None in stamps.values() else stamps


def _problems(
    index: AnnotationIndex, folder: Folder, limits: _Limits, numbers: np.ndarray
) -> Iterator[tuple[int, str]]:
    def problem(number: int) -> str | None:
        image = index.image(number)
        size = image["height"], image["width"]
        try:
            found = image_problem(picture_of(folder, image), size, *limits)
        except RemoteError as error:
            raise RemoteError(f"{error} (image id {image['id']})") from error
        return found and f"image {image['id']} ({image['file_name']}): {found}"

    if len(numbers) and not isinstance(folder, Path):
        _logger.info("%s: all of its %d pictures are looked at, once", folder, len(numbers))
    # Threads, as on a network disk the time goes into waiting.
    with ThreadPoolExecutor(8 if isinstance(folder, Path) else 32) as pool:
        for first in range(0, len(numbers), _GROUP):
            group = numbers[first : first + _GROUP].tolist()
            found = zip(group, pool.map(problem, group), strict=True)
            yield from ((number, one) for number, one in found if one)
