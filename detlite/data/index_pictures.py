"""The pictures of an index: checked once, and again when their folders have changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .images import image_problem
from .index import AnnotationIndex
from .index_cache import cache_folder, identity, locked, read_note, stamp, write_note

_CHECKS = 1  # raise it with any change of what `image_problem` finds
_Limits = tuple[int, int, bool]  # what `image_problem` takes
_GROUP = 4096  # pictures that threads are given at once


def picture_problems(
    index: AnnotationIndex, folder: Path, max_pixels: int, bits: int, exif_orientation: bool
) -> dict[int, str]:
    """What is wrong with pictures, by their number in the index.

    All of them are looked at once. A note of that, which holds as long as no picture is added to
    their folders, removed or renamed, names the unsound ones, and these alone are looked at again:
    they may have been mended in place. One that was damaged in place shows when it is decoded.

    Args:
        index: of the annotation file.
        folder: that its file names are relative to.
        max_pixels, bits, exif_orientation: of a picture, see `read_image`.
    """
    limits = max_pixels, bits, exif_orientation
    cache = cache_folder()
    if cache is not None:
        parts = index.file.table["hash"], index.file.table["by_url"], folder.absolute()
        note = cache / f"{identity(*parts, *limits, _CHECKS)}.pictures"
        with locked(note.with_suffix(".lock")):
            return _noted_problems(index, folder, limits, note)
    return dict(_problems(index, folder, limits, np.arange(len(index.image_ids))))


def _noted_problems(
    index: AnnotationIndex, folder: Path, limits: _Limits, note: Path
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


def _stamps(index: AnnotationIndex, folder: Path) -> dict[str, Any] | None:
    """What changes when one of the folders does; None: too new to tell."""
    stamps: dict[str, list[int] | None] = {}
    for name in index.folders:
        try:
            stamps[name] = stamp(folder / name)
        except OSError:
            stamps[name] = []  # not there
    return None if None in stamps.values() else stamps


def _problems(
    index: AnnotationIndex, folder: Path, limits: _Limits, numbers: np.ndarray
) -> Iterator[tuple[int, str]]:
    def problem(number: int) -> str | None:
        image = index.image(number)
        size = image["height"], image["width"]
        found = image_problem(folder / image["file_name"], size, *limits)
        return found and f"image {image['id']} ({image['file_name']}): {found}"

    # Threads, as on a network disk the time goes into waiting.
    with ThreadPoolExecutor(8) as pool:
        for first in range(0, len(numbers), _GROUP):
            group = numbers[first : first + _GROUP].tolist()
            found = zip(group, pool.map(problem, group), strict=True)
            yield from ((number, one) for number, one in found if one)
