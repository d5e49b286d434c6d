"""Check the image files of a dataset once, and again when their folders have changed."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from detlite.data.annotations.table import AnnotationTable
from detlite.data.findings import Finding
from detlite.data.locations import location_id
from detlite.files import cache
from detlite.files.errors import RemoteError
from detlite.files.progress import progress_bar
from detlite.threads import in_threads

from .listing import list_files, select_images
from .pixels import ImageOptions, upright_size
from .reading import check_image
from .sources import ImageFolder

_UPRIGHT = (
    "Annotations are used for the upright images. If they count stored pixels, set "
    "MODEL.CONVENTION_OVERRIDE [exif_orientation=False]."
)
_UNLISTED = (
    "They are not used, which is right for images of other sets. To use the others, even without "
    "objects, list them in an annotation file."
)
_VERSION = 4  # increase it with every change of the results of `check_image` or of the notes


def check_images(
    table: AnnotationTable, folder: ImageFolder, options: ImageOptions
) -> tuple[dict[int, str], list[Finding]]:
    """Return the problems of image files by their number in the table, and what else was found.

    Findings are local images that an EXIF orientation changes without changing their size.

    All images are checked once. A note in the cache lists those with a result, which are checked
    again. The note is valid until a file in the image folders is added, removed or renamed, and
    permanently for a folder at a URL.
    """
    notes, numbers = cache.folder(), np.arange(len(table))
    if notes is None:
        results = dict(_check(table, folder, options, numbers))
    else:
        images, facts = location_id(folder), table.facts
        checked = (*astuple(options), _VERSION)
        note_file = (
            notes / f"{cache.key(facts['hash'], facts['by_url'], images, *checked)}.pictures"
        )
        with cache.exclusive_lock(note_file.with_suffix(".lock")):
            stamps, note = _folder_stamps(table, folder), cache.read_note(note_file)
            valid = stamps is not None and isinstance(note, dict) and note.get("folders") == stamps
            numbers = np.array(note["found"], np.int64) if valid else numbers
            results = dict(_check(table, folder, options, numbers))
            if stamps is not None and (not valid or len(results) < len(numbers)):
                with contextlib.suppress(OSError):
                    cache.write_note(note_file, {"folders": stamps, "found": list(results)})
    bad = {number: text for number, (text, is_bad) in results.items() if is_bad}
    turned = [text for text, is_bad in results.values() if not is_bad]
    what = "images whose EXIF orientation keeps their size"
    return bad, [Finding(what, _UPRIGHT, len(turned), "image", turned[0])] if turned else []


def unlisted_images(parts: Sequence[tuple[AnnotationTable, ImageFolder]]) -> Iterator[Finding]:
    """Report local image files in the folders of listed ones that no table lists.

    Not for LVIS, whose splits share folders, and converted labels, which have their own findings.
    """
    parts = [(table, folder) for table, folder in parts if isinstance(folder, Path)
             and not (table.facts["by_url"] or table.content.get("converted"))]  # fmt: skip
    folders, files = dict[Path, str](), set[tuple[str, str]]()
    for table, folder in parts:
        for path in (folder / name for name in table.facts["folders"]):
            folders[path] = os.path.realpath(path)
    for real in {*folders.values()}:
        images = select_images(list_files(Path(real), deep=False))
        files |= {(real, image.name) for image in images}
    folder_count = sum(len(table.facts["folders"]) for table, _ in parts)
    image_count = sum(len(table) for table, _ in parts)
    if (len({*folders.values()}), len(files)) == (folder_count, image_count):
        return  # no folder is shared; reading the names would take seconds for COCO
    for table, folder in parts:
        paths = (folder / table.image(k)["file_name"] for k in range(len(table)))
        files -= {(folders[path.parent], path.name) for path in paths}
    if files:
        what, example = "image files that no annotation file in use lists", "/".join(min(files))
        yield Finding(what, _UNLISTED, len(files), "image", example)


def _folder_stamps(table: AnnotationTable, folder: ImageFolder) -> dict[str, Any] | None:
    """Return the stamps of the image folders; None if one was modified too recently."""
    if not isinstance(folder, Path):
        return {}
    stamps: dict[str, list[int] | None] = {}
    for name in table.facts["folders"]:
        try:
            stamps[name] = cache.file_stamp(folder / name)
        except OSError:
            stamps[name] = []  # missing, or not readable
    return None if None in stamps.values() else stamps


def _check(
    table: AnnotationTable, folder: ImageFolder, options: ImageOptions, numbers: np.ndarray
) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Yield what was found in images, and True if it is a problem."""
    is_local = isinstance(folder, Path)

    def check(number: int) -> tuple[str, bool] | None:
        image = table.image(number)
        size = image["height"], image["width"]
        try:
            problem, orientation = check_image(folder / image["file_name"], size, options)
        except RemoteError as error:
            raise RemoteError(f"{error} (image id {image['id']})") from error
        where = f"image {image['id']} ({image['file_name']})"
        if problem:
            return f"{where}: {problem}", True
        is_turned = is_local and orientation != 1 and upright_size(size, orientation) == size
        return (f"{where}: orientation {orientation}", False) if is_turned else None

    # Threads, because a network disk mostly waits.
    results = in_threads(check, numbers.tolist(), 8 if is_local else 32)
    bar = progress_bar(results, f"checking images in {folder}", len(numbers), unit=" images")
    yield from ((n, result) for n, result in zip(numbers.tolist(), bar, strict=True) if result)
