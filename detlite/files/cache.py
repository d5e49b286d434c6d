"""The folder of files that are derived from datasets: indexes, copies of remote files, notes.

A note is a small JSON file. It records, for example, the content hash of an annotation file and is
valid as long as the file's stamp (size, times and inode) does not change.
"""

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from .atomic_write import atomic_open

VARIABLE = "DETLITE_CACHE"
_SECONDS_UNMARKED = 10 * 86400.0  # `mark_used` updates the time of a file at most this often
_OWN_FILE = re.compile(
    r"[0-9a-f]{40}(-by-url)?(-nameless)?\.(index|lock|note|pictures|copy|copied)"
    r"|\.[0-9a-f]{40}.*(?P<unfinished>\.tmp)"
)
_POLL_SECONDS = 0.01  # between two attempts to get a lock
_TIME_STEP = 2.0  # seconds; file times of some systems do not change within such a step


def folder() -> Path | None:
    """Return DETLITE_CACHE, or else detlite in XDG_CACHE_HOME or ~/.cache; None if it is empty."""
    path = os.environ.get(VARIABLE)
    if path is not None:
        return Path(path).expanduser() if path else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "detlite"


def existing_folder() -> Path:
    """Create and return the cache folder, or a folder of this process if caching is off."""
    path = folder() or process_folder()
    path.mkdir(parents=True, exist_ok=True)
    return path


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


def delete_unused(cache: Path) -> None:
    """Delete the files of the cache that were not used for 30 days, and old unfinished ones."""
    for path in cache.iterdir():
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
