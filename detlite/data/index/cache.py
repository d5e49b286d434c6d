"""Where indexes are kept, and when one is made.

An index is named by a hash of its annotation file's content, so that a copy of the file, or one
that was only touched, needs no new one, and a change is never missed. To read all of the file at
every start would take long on a slow disk: a note says which hash a path had, and holds as long as
the file's size, times and inode stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from detlite.data.errors import DataError

from .build import content_hash, write_index
from .file_format import DamagedIndexError, IndexFile, IndexWriter
from .index import AnnotationIndex

VARIABLE = "DETLITE_CACHE"
_DAYS_KEPT = 30  # unused
_OURS = re.compile(
    r"[0-9a-f]{40}(-by-url)?\.(index|lock|note|pictures|copy|copied|shard|coco)"
    r"|\.[0-9a-f]{40}.*(?P<unfinished>\.tmp)"
)
# Some file systems count time in steps of two seconds: a file that was written again within one
# may look as before.
_SETTLED = 2.0
_logger = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """DETLITE_CACHE, or else detlite in XDG_CACHE_HOME or ~/.cache; None if that is set empty."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).expanduser() if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "detlite"


def open_index(file: Path, by_url: bool = False) -> AnnotationIndex:
    """The index of an annotation file, which is made if there is none of this content.

    Of processes that ask for it at once, one makes it. Where the folder of `cache_folder` cannot be
    written to, it is made anew, in a temporary file.

    Args:
        file: in COCO's form.
        by_url: see `write_index`.

    Raises:
        DataError: see `write_index`; or there is no room for it.
    """
    folder = cache_folder()
    if folder is not None:
        try:
            return AnnotationIndex(_kept(file, by_url, folder))
        except OSError as error:
            _logger.warning(
                "%s: the index is made in a temporary file, and again at the next start: %s (set "
                "%s to a folder with room)", file, str(error), VARIABLE,
            )  # fmt: skip
    return AnnotationIndex(_temporary(file, by_url))


def identity(*parts: object) -> str:
    """A name for what is kept about such parts."""
    text = json.dumps([str(part) for part in parts])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def stamp(path: Path) -> list[int] | None:
    """What changes whenever a file or the entries of a folder do; None: too new to tell.

    Raises:
        OSError: there is no such path.
    """
    found = path.stat()
    if time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def read_note(file: Path) -> Any:
    """What `write_note` wrote; None if there is nothing sound."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def write_note(file: Path, content: Any) -> None:
    """Writes a note, atomically. Raises OSError."""
    with appearing(file) as opened:
        opened.write(json.dumps(content).encode())


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keeps other processes that lock the same file waiting.

    It has no effect where the file cannot be made, or its file system, as some of a network, has no
    locks: then processes do the same work at once.
    """
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            lock = opened.enter_context(file.open("a"))
            os.utime(file)  # in use
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kept(file: Path, by_url: bool, folder: Path) -> IndexFile:
    """Raises OSError if there is none and the folder cannot be written to, and DataError."""
    note = folder / f"{identity(file.absolute())}.note"
    try:
        now = stamp(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    noted = read_note(note)
    known = now is not None and isinstance(noted, dict) and noted.get("stamp") == now
    content = str(noted["hash"]) if known else content_hash(file)
    path = folder / f"{content}{'-by-url' * by_url}.index"
    index = _sound(path, content)
    if index is None:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            # Another process may have made it meanwhile.
            index = _sound(path, content)
            if index is None:
                _delete_unused(folder)
                with appearing(path) as opened:
                    _make(file, by_url, content, opened)
                index = IndexFile.open(path)
    # Another user's folder serves as well.
    with contextlib.suppress(OSError):
        os.utime(path)  # in use
        if now is not None and not known:
            write_note(note, {"stamp": now, "hash": content})
    return index


def _sound(path: Path, content: str) -> IndexFile | None:
    try:
        index = IndexFile.open(path)
    except FileNotFoundError:
        return None
    except DamagedIndexError as error:
        _logger.warning("%s; it is made anew", error)
        return None
    return index if index.table.get("hash") == content else None


def _make(file: Path, by_url: bool, content: str, opened: BinaryIO) -> None:
    start = time.perf_counter()
    write_index(file, by_url, content, IndexWriter(opened))
    _logger.info("%s: made its index in %.1f s", file, time.perf_counter() - start)


def _temporary(file: Path, by_url: bool) -> IndexFile:
    """In a file that is deleted when this process ends, or no longer uses it."""
    content = content_hash(file)
    try:
        # Not opened by its descriptor: loader processes may have to open it by name.
        descriptor, name = tempfile.mkstemp(prefix="detlite-", suffix=".index")
        os.close(descriptor)
        path = Path(name)
        try:
            with path.open("wb") as opened:
                _make(file, by_url, content, opened)
            index = IndexFile.open(path)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise DataError(
            f"{file}: there is no room for its index, which is about as large ({error}): set "
            f"{VARIABLE} to a folder of a disk that has it"
        ) from error
    weakref.finalize(index, _delete, path, os.getpid())
    return index


def _delete(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when it is whole, or else is deleted."""
    unfinished = path.parent / f".{path.stem}-{os.getpid()}-{time.time_ns()}.tmp"
    with unfinished.open("xb") as opened:
        try:
            yield opened
            opened.flush()
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _delete_unused(folder: Path) -> None:
    for path in folder.iterdir():
        # The folder may hold other things than ours.
        if not (found := _OURS.fullmatch(path.name)):
            continue
        days = 1 if found["unfinished"] else _DAYS_KEPT
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - days * 86400:
                path.unlink()
