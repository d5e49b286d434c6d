"""A folder of cached files with a size limit: the least recently used ones are deleted.

fsspec's `filecache` has no size limit, and lets each process fetch the same file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from . import cache
from .atomic_write import atomic_open

_KEPT_FRACTION = 0.9  # fraction of the limit that remains after deleting files
_logger = logging.getLogger(__name__)
_warned: set[Path] = set()


def file_cache(name: str, limit: int) -> FileCache | None:
    """Return the user's cache with a name; None if caching is off."""
    folder = cache.folder()
    return FileCache(folder / name, limit) if folder is not None and limit > 0 else None


class FileCache:
    """Files by key, at most `limit` bytes in total, shared by any number of processes.

    If several processes request the same key, one fetches it. If the folder cannot be written,
    nothing is cached, and each process logs one warning.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def read(self, key: str, fetch: Callable[[], bytes]) -> bytes:
        """Return the content of a cached file, or else the result of `fetch`, which is cached."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            return _read(path)
        with contextlib.suppress(OSError):  # `_store` reports it
            path.parent.mkdir(parents=True, exist_ok=True)
        with cache.exclusive_lock(path.parent.with_suffix(".lock")):
            with contextlib.suppress(OSError):
                return _read(path)  # another process has fetched it
            content = fetch()
            self._store(path, content)
            return content

    def forget(self, key: str) -> bool:
        """Delete a cached file. Returns True if it was cached."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()
            return True
        return False

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key[2:]

    def _store(self, path: Path, data: bytes) -> None:
        if len(data) > self._limit:
            return
        try:
            with atomic_open(path, "wb", unique=True) as file:
                file.write(data)
            with cache.exclusive_lock(self._folder / "lock"):
                self._add_size(len(data))
        except OSError as error:
            if self._folder not in _warned:
                _warned.add(self._folder)
                _logger.warning(
                    "%s: files are not cached but read each time: %s", self._folder, error
                )

    def _add_size(self, added: int) -> None:
        """Update the total size; if it is unknown or exceeds the limit, delete files."""
        note = self._folder / "size"
        total = self._limit + 1
        with contextlib.suppress(OSError, ValueError):
            total = int(note.read_text()) + added
        if total > self._limit:
            total = self._shrink()
        note.write_text(str(total))

    def _shrink(self) -> int:
        """Delete the least recently used files if the limit is exceeded; return the total size."""
        files: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        target = self._limit * _KEPT_FRACTION if total > self._limit else total
        for _, size, path in sorted(files):
            if total > target:
                path.unlink(missing_ok=True)
                total -= size
        return total


def _read(path: Path) -> bytes:
    """Return the content of a file, which is marked as used."""
    content = path.read_bytes()
    with contextlib.suppress(OSError):
        os.utime(path)
    return content
