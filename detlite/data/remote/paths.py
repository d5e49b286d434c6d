"""Files and folders at URLs, in the place of local ones."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import quote

from detlite.config import expand_variables
from detlite.data.errors import DataError
from detlite.data.index.cache import (
    VARIABLE,
    cache_folder,
    identity,
    locked,
    read_note,
    write_note,
)

from .download import without_query
from .fetching import Description, describe, download, read
from .file_cache import FileCache

GIGABYTE = 1 << 30
_UNTOUCHED = 10 * 86400.0  # seconds; `index_cache` deletes what was not used for 30 days


class StoredPicture(Protocol):
    """A picture that is no file of its own on the disk; messages call it by its `str`."""

    def read_bytes(self) -> bytes:
        """Its file. Raises FileNotFoundError, or DataError."""

    def forget(self) -> bool:
        """Drops a copy of it, so that it is fetched again; whether there was one."""


@dataclass(frozen=True)
class Remote:
    """A file or a folder at a URL of fsspec: `s3://bucket/folder`, `zip://folder::https://a/b.zip`.

    Attributes:
        url: as fsspec takes it.
        cache_bytes: how much of what is read is kept on the disk, see `FileCache`.
    """

    url: str
    cache_bytes: int = 0

    def __truediv__(self, name: str | Path) -> Remote:
        """A file in it. In URLs of http a name is quoted, and goes before the ?."""
        path = str(PurePosixPath(name))
        if path == ".":
            return self
        parts = self.url.split("::")
        # In simplecache::s3://bucket the folder is in the second part.
        at = next((n for n, part in enumerate(parts) if "://" in part), 0)
        protocol, mark, folder = parts[at].rpartition("://")
        query = ""
        if protocol in ("http", "https"):
            folder, question, query = folder.partition("?")
            path, query = quote(path), question + query
        parts[at] = f"{protocol}{mark}{folder.rstrip('/')}{'/' * bool(folder)}{path}{query}"
        return replace(self, url="::".join(parts))

    def __str__(self) -> str:
        return without_query(self.url)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.url.split("::")[0].partition("?")[0]).name

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.name).stem

    def read_bytes(self) -> bytes:
        """What it holds, from the cache where it is there. Raises as `fetching.read` does."""
        cache = self._cache()
        if cache is None:
            return read(self.url)
        return cache.read(identity(self.url), lambda: read(self.url))

    def forget(self) -> bool:
        """Drops what the cache has of it; whether there was something."""
        cache = self._cache()
        return cache is not None and cache.forget(identity(self.url))

    def _cache(self) -> FileCache | None:
        last = self.url.split("::")[-1]
        local = "://" not in last or last.startswith(("file://", "local://"))
        return None if local else shared_cache(self.cache_bytes)


Location = Path | Remote


def shared_cache(limit: int) -> FileCache | None:
    """The cache of this machine's user for what is read from URLs; None: nothing is to be kept."""
    folder = cache_folder()
    return FileCache(folder / "remote", limit) if folder is not None and limit > 0 else None


def place(text: str, root: Location | None = None) -> Location:
    """The file or folder that a config names: a URL, or a path, relative to `root`.

    Raises:
        ConfigError: it needs an environment variable that is not set.
    """
    text = expand_variables(text)
    if "://" in text:
        return Remote(text)
    path = Path(text).expanduser()
    if isinstance(root, Remote):
        return path if path.is_absolute() else root / path
    return path if root is None else root / path


def address(file: Location) -> str:
    """What tells it from all others on this machine."""
    return file.url if isinstance(file, Remote) else str(file.absolute())


def kept_folder() -> Path:
    """The cache folder, or where there is to be none one for as long as this process runs.

    Raises:
        OSError: it cannot be made.
    """
    folder = cache_folder() or _temporary(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(file: Path) -> None:
    """Notes that a file of `kept_folder` is in use; rarely, as its index goes by its times."""
    if time.time() - file.stat().st_mtime > _UNTOUCHED:
        os.utime(file)


@contextmanager
def named(file: Path, name: object) -> Iterator[None]:
    """A DataError that is raised within calls a file by this name."""
    try:
        yield
    except DataError as error:
        if str(file) not in str(error):
            raise
        raise type(error)(str(error).replace(str(file), str(name))) from error


@contextmanager
def local_copy(file: Location) -> Iterator[Path]:
    """A local file itself, or a copy of one at a URL, which is what the URL holds now.

    The copy stays in the cache, and is fetched again when size or version have changed, or where
    the server tells neither. A DataError that is raised within names the URL instead of the copy.

    Raises:
        DataError: there is no such file, it cannot be read, or there is no room for it.
    """
    if isinstance(file, Path):
        yield file
        return
    copy = _copied(file)
    with named(copy, file):
        yield copy


def _copied(file: Remote) -> Path:
    try:
        copy = kept_folder() / f"{identity('copy', file.url)}.copy"
        with locked(copy.with_suffix(".lock")):
            known = describe(file.url)
            note = copy.with_suffix(".copied")
            sound = copy.is_file() and read_note(note) == _noted(known, copy)
            if not sound or known.version is None:
                note.unlink(missing_ok=True)
                unfinished = copy.parent / f".{copy.stem}-{os.getpid()}.tmp"
                try:
                    known = download(file.url, unfinished)
                    unfinished.replace(copy)
                finally:
                    unfinished.unlink(missing_ok=True)
                write_note(note, _noted(known, copy))
            keep(copy)
    except FileNotFoundError as error:
        raise DataError(f"{file}: there is no such file") from error
    except OSError as error:
        raise DataError(
            f"{file}: there is no room for a copy ({error}): set {VARIABLE} to a folder with room"
        ) from error
    return copy


def _noted(known: Description, copy: Path) -> list[str | int | None]:
    """What a copy is known by: that of the file, and its own size, should it be cut off."""
    return [known.size, known.version, copy.stat().st_size]


@lru_cache(maxsize=1)
def _temporary(process: int) -> Path:
    """A folder for as long as this process runs."""
    folder = Path(tempfile.mkdtemp(prefix="detlite-"))

    @atexit.register
    def delete() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    return folder
