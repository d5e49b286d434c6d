"""The folder of files that are derived from datasets: indexes, copies of remote files, notes.

A note is a small JSON file. It records, for example, the content hash of an annotation file and is
valid as long as the file's stamp (size, times and inode) does not change.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from .atomic_write import atomic_open

VARIABLE = "DETLITE_CACHE"
_SECONDS_UNMARKED = 10 * 86400.0  # `mark_used` updates the time of a file at most this often
_OWN_FILE = re.compile(
    r"[0-9a-f]{40}(-by-url)?(-nameless)?\.(index|lock|note|pictures|copy)"
    r"|\.[0-9a-f]{40}.*(?P<unfinished>\.tmp)"
)
_POLL_SECONDS = 0.01  # between two attempts to get a lock
_KEPT_FRACTION = 0.9  # of the limit of a `FileCache` that remains after deleting files
_TIME_STEP = 2.0  # seconds; file times of some systems do not change within such a step
_logger = logging.getLogger(__name__)
_warned: set[Path] = set()


def folder() -> Path | None:
    """Return DETLITE_CACHE, or else detlite in XDG_CACHE_HOME or ~/.cache; None if it is empty."""
    path = os.environ.get(VARIABLE)
    if path is not None:
        return Path(path).expanduser() if path else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "detlite"


def key(*parts: object) -> str:
    """Return 40 hexadecimal digits that identify `parts`, as the name of a file."""
    text = json.dumps([*map(str, parts)])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def file_stamp(path: Path) -> list[int] | None:
    """Return size, times and inode of a path, which change with a file or the entries of a folder.

    None if the path was modified so recently that the next modification may not change them.
    """
    status = path.stat()
    if time.time() - max(status.st_mtime, status.st_ctime) < _TIME_STEP:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def read_note(file: Path) -> Any:
    """Return the content of a note; None if it is missing or damaged."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def write_note(file: Path, content: Any) -> None:
    with atomic_open(file, "wb", unique=True) as stream:
        stream.write(json.dumps(content).encode())


@contextlib.contextmanager
def exclusive_lock(file: Path) -> Iterator[None]:
    """Make other processes that lock the same file wait.

    The lock has no effect if the file cannot be created, or if its file system has no locks.
    Processes may then do the same work at the same time.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            stack.enter_context(FileLock(file, poll_interval=_POLL_SECONDS))
        yield


def mark_used(file: Path) -> None:
    """Protect a file from `delete_unused`. Its time changes rarely, because stamps contain it."""
    if time.time() - file.stat().st_mtime > _SECONDS_UNMARKED:
        os.utime(file)


def delete_unused(folder: Path) -> None:
    """Delete the files of the cache that were not used for 30 days, and old unfinished ones."""
    for path in folder.iterdir():
        # The folder may contain other files.
        if not (match := _OWN_FILE.fullmatch(path.name)):
            continue
        days = 1 if match["unfinished"] else 30
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - days * 86400:
                path.unlink()


def process_folder() -> Path:
    """Return a temporary folder that is deleted when this process ends."""
    return _temporary_folder(os.getpid())


@lru_cache(maxsize=1)
def _temporary_folder(process: int) -> Path:
    temporary = Path(tempfile.mkdtemp(prefix="detlite-"))

    @atexit.register
    def delete() -> None:
        if os.getpid() == process:
            shutil.rmtree(temporary, ignore_errors=True)

    return temporary


def file_cache(name: str, limit: int) -> FileCache | None:
    """Return the user's cache with a name; None if caching is off."""
    parent = folder()
    return FileCache(parent / name, limit) if parent is not None and limit > 0 else None


class FileCache:
    """Files by key, at most `limit` bytes in total, shared by any number of processes.

    The least recently used files are deleted. fsspec's `filecache` has no size limit, and lets each
    process fetch the same file. Here, one fetches it. If the folder cannot be written, nothing is
    cached, and each process logs one warning.
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
        with exclusive_lock(path.parent.with_suffix(".lock")):
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
            with exclusive_lock(self._folder / "lock"):
                self._limit_size(len(data))
        except OSError as error:
            if self._folder not in _warned:
                _warned.add(self._folder)
                _logger.warning(
                    "%s: files are not cached but read each time: %s", self._folder, error
                )

    def _limit_size(self, added: int) -> None:
        """Note the total size; if it is unknown or exceeds the limit, delete the oldest files."""
        note = self._folder / "size"
        files: list[tuple[float, int, Path]] = []
        try:
            total = int(note.read_text()) + added
        except (OSError, ValueError):
            total = self._limit + 1
        if total > self._limit:
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
        note.write_text(str(total))


def _read(path: Path) -> bytes:
    """Return the content of a file, which is marked as used."""
    content = path.read_bytes()
    with contextlib.suppress(OSError):
        os.utime(path)
    return content
