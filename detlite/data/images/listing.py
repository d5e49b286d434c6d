"""List the image files in folders, for all commands."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from detlite.files.errors import DataError

from .formats import image_suffixes

# Files and folders of macOS, Windows and Synology.
_JUNK = {"__macosx", "thumbs.db", "desktop.ini", "$recycle.bin", "@eadir"}


def list_files(
    folder: Path, skipped: Callable[[Path], bool] = lambda path: False, deep: bool = True
) -> list[Path]:
    """List the files in a folder by path, except hidden ones and those of operating systems.

    A symbolic link to a folder outside of `folder` is followed once.

    Args:
        skipped: returns True for further files and subfolders that are skipped.
        deep: also list the files in subfolders.
    """
    root, followed, files = os.path.realpath(folder), set[str](), list[Path]()

    def is_used(path: Path) -> bool:
        return not (path.name.startswith(".") or path.name.lower() in _JUNK or skipped(path))

    def is_new(path: Path) -> bool:
        if not path.is_symlink():
            return True
        target = os.path.realpath(path)
        is_known = target in followed or Path(target).is_relative_to(root)
        followed.add(target)
        return not is_known

    # `os.walk` knows the type of an entry from its folder, without a request for each file.
    for parent, folders, names in os.walk(folder, followlinks=True):
        files += filter(is_used, (Path(parent, name) for name in names))
        # In the order of names, so that the first of several links is followed.
        inner = sorted(filter(is_used, (Path(parent, name) for name in folders)))
        folders[:] = [path.name for path in inner if deep and is_new(path)]
    return sorted(files)


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
