"""Locations of files and folders: local paths, or URLs that are used in the same way."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from detlite.config import expand_path, expand_variables
from detlite.files.errors import DataError

from .remote.remote_path import RemotePath

Location: TypeAlias = Path | RemotePath


def parse_location(text: str, root: Location | None = None) -> Location:
    """Return the location that a config value names: a URL, or a path relative to `root`."""
    expanded = expand_variables(text)
    if "://" in expanded:
        return RemotePath(expanded)
    path = expand_path(text)
    return path if root is None or path.is_absolute() else root / path


def location_id(location: object) -> str:
    """Return a text that identifies a location or a folder of images on this machine."""
    if isinstance(location, Path):
        return str(location.absolute())
    return location.url if isinstance(location, RemotePath) else str(location)


@contextmanager
def errors_naming(name: object, instead_of: Path) -> Iterator[None]:
    """Replace the path of a file by another name in the message of a DataError."""
    try:
        yield
    except DataError as error:
        if str(instead_of) not in str(error):
            raise
        raise type(error)(str(error).replace(str(instead_of), str(name))) from error


@contextmanager
def local_copy(location: Location) -> Iterator[Path]:
    """Yield a local file unchanged, or a local copy of the current content of a URL.

    The copy stays in the cache. It is fetched again if size or version have changed, or if the
    server reports neither. A DataError, also in the `with` block, names the URL.
    """
    if isinstance(location, Path):
        yield location
        return
    copy = location.current_copy()
    with errors_naming(location, instead_of=copy):
        yield copy
