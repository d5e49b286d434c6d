"""List the image files in folders, for all commands."""

import os
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path

from detlite.files.errors import DataError

from .formats import image_suffixes

# Files and folders of macOS, Windows and Synology.
_JUNK = {"__macosx", "thumbs.db", "desktop.ini", "$recycle.bin", "@eadir"}


def list_files(
    folder: Path, skipped: Callable[[Path], bool] = lambda path: False, deep: bool = True
) -> list[Path]:
    """List the files in a folder, except hidden ones and those of operating systems.

    A symbolic link to a folder outside of `folder` is followed once.

    Args:
        skipped: returns True for further files and subfolders that are skipped.
        deep: also list the files in subfolders.
    """
    root, followed = os.path.realpath(folder), set[str]()

    def is_used(entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or entry.name.lower() in _JUNK or skipped(Path(entry.path)):
            return False
        if not (entry.is_symlink() and entry.is_dir()):
            return True
        target = os.path.realpath(entry.path)
        is_new = target not in followed and not Path(target).is_relative_to(root)
        followed.add(target)
        return is_new

    def used_entries(path: str) -> list[os.DirEntry[str]]:
        """Return the used entries of a folder in reverse order; none if it cannot be read."""
        try:
            with os.scandir(path) as entries:
                # In the order of names, so that the first of several links is followed.
                return list(filter(is_used, sorted(entries, key=attrgetter("name"))))[::-1]
        except OSError:
            return []

    files, waiting = list[Path](), used_entries(os.fspath(folder))
    while waiting:
        entry = waiting.pop()
        # The type of an entry is known from its folder, without a request for each file.
        if not entry.is_dir():
            files.append(Path(entry.path))
        elif deep:
            waiting += used_entries(entry.path)
    return files


def select_images(files: Iterable[Path], more: Sequence[str] = ()) -> list[Path]:
    """Return the files with the suffix of an image format or of a registered image reader.

    Those with one of `more` suffixes count as well, but not macOS's "._a.jpg" in zip files.
    """
    suffixes = (*image_suffixes(), *more)  # may have several dots, as .nii.gz
    return [x for x in files if x.name.lower().endswith(suffixes) and x.name[:2] != "._"]


def list_images(
    folder: Path, skipped: Callable[[Path], bool] = lambda path: False, more: Sequence[str] = ()
) -> list[Path]:
    """List the images in a folder, or else in its subfolders, sorted by path.

    See `list_files` and `select_images` for the arguments.

    Raises:
        DataError: there are none, or the folder cannot be read.
    """
    try:
        os.listdir(folder)  # os.walk skips what it cannot read
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read ({error})") from error
    for deep in (False, True):
        if images := select_images(list_files(folder, skipped, deep), more):
            return images
    raise DataError(f"{folder}: the folder contains no images")
