"""A folder of copies that is bounded: those that were not used for longest are dropped."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from detlite.data.index.cache import appearing, locked

_HEAD = struct.Struct("<8sQ")  # magic, bytes that follow
_MAGIC = b"detlite\n"
_LEFT = 0.9  # of the limit, once copies were dropped
_UNFINISHED = 3600.0  # seconds after which what a process left aside is dropped
_logger = logging.getLogger(__name__)
_said: set[Path] = set()


class FileCache:
    """Copies by name, of at most `limit` bytes together, for any number of processes.

    A copy is written aside and renamed, so that it is whole or not there; of processes that ask for
    one at once, one fetches it. Where the folder cannot be written to, or its disk is full, nothing
    is kept, and each process says so once.

    Args:
        folder: of the copies alone.
        limit: in bytes, as the copies count them.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def read(
        self, name: str, fetch: Callable[[], bytes], start: int = 0, stop: int | None = None
    ) -> bytes:
        """What `fetch` gives, or its bytes from `start` to before `stop`.

        Args:
            name: hexadecimal digits that tell it from all else.
            fetch: is called where there is no copy; what it raises is raised.
        """
        path = self._path(name)
        found = _read(path, start, stop)
        if found is None:
            self._make(path.parent)
            with locked(path.parent / "lock"):
                found = _read(path, start, stop)  # another process may have fetched it meanwhile
                if found is None:
                    data = fetch()
                    self._keep(path, data)
                    return data[start:stop]
        with contextlib.suppress(OSError):
            os.utime(path)  # in use
        return found

    def forget(self, name: str) -> bool:
        """Drops a copy; whether there was one."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()
            return True
        return False

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._say(error)

    def _keep(self, path: Path, data: bytes) -> None:
        size = _HEAD.size + len(data)
        if size > self._limit:
            return
        try:
            with appearing(path) as file:
                file.write(_HEAD.pack(_MAGIC, len(data)))
                file.write(data)
            with locked(self._folder / "lock"):
                self._count(size)
        except OSError as error:
            self._say(error)

    def _count(self, added: int) -> None:
        """Adds to the size of all copies, and drops some where that is above the limit."""
        note = self._folder / "size"
        try:
            before = int(note.read_text())
        except (OSError, ValueError):
            before = -1  # not known
        size = before + added
        if before < 0 or size > self._limit:
            size = self._drop()
        note.write_text(str(size))

    def _drop(self) -> int:
        """Drops copies until enough are gone; the size of those that are left."""
        found: list[tuple[float, int, str]] = []
        for folder in os.scandir(self._folder):
            if folder.is_dir():
                for entry in os.scandir(folder.path):
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        if entry.name == "lock":
                            continue
                        if not entry.name.endswith(".tmp"):
                            found.append((status.st_mtime, status.st_size, entry.path))
                        elif status.st_mtime < time.time() - _UNFINISHED:
                            os.unlink(entry.path)
        size = sum(one for _, one, _ in found)
        if size > self._limit:
            for _, one, path in sorted(found):
                if size <= self._limit * _LEFT:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                size -= one
        return size

    def _say(self, error: OSError) -> None:
        if self._folder not in _said:
            _said.add(self._folder)
            _logger.warning(
                "%s: no copies are kept, all is fetched each time (%s)", self._folder, error
            )


def _read(path: Path, start: int, stop: int | None) -> bytes | None:
    """A part of a copy; None where there is none, or one that is not whole."""
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            whole = os.fstat(file.fileno()).st_size - _HEAD.size
            if len(head) < _HEAD.size or _HEAD.unpack(head) != (_MAGIC, whole):
                return None
            stop = whole if stop is None else min(stop, whole)
            return os.pread(file.fileno(), max(stop - start, 0), _HEAD.size + start)
    except OSError:
        return None
