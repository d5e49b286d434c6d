"""List the image files in folders, for all commands."""

import os
from collections.abc import Callable, Iterable
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

    def is_used(path: Path) -> bool:
        if path.name.startswith(".") or path.name.lower() in _JUNK or skipped(path):
            return False
        if not (path.is_symlink() and path.is_dir()):
            return True
        target = os.path.realpath(path)
        is_new = target not in followed and not Path(target).is_relative_to(root)
        followed.add(target)
        return is_new

    files: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in sorted(folders) if deep and is_used(Path(parent, name))]
        files += [path for name in names if is_used(path := Path(parent, name))]
    return sorted(files)


def select_images(files: Iterable[Path]) -> list[Path]:
    """Return the files with the suffix of an image format or of a registered image reader."""
    suffixes = tuple(image_suffixes())  # may have several dots, as .nii.gz
    return [file for file in files if file.name.lower().endswith(suffixes)]


def list_images(folder: Path, skipped: Callable[[Path], bool] = lambda path: False) -> list[Path]:
    """List the images in a folder, or else in its subfolders, sorted by path; see `list_files`.

    Raises:
        DataError: there are none, or the folder cannot be read.
    """
    try:
        os.listdir(folder)  # os.walk skips what it cannot read
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be read ({error})") from error
    for deep in (False, True):
        if images := select_images(list_files(folder, skipped, deep)):
            return images
    raise DataError(f"{folder}: the folder contains no images")
