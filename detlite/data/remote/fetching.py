"""Files at URLs, by fsspec: how they are read, how often that is tried, and how it fails."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from detlite.config import ConfigError

from .download import retry, without_query

_SILENCE = 60.0  # seconds without a byte after which a connection counts as lost
# What file systems call a version of a file, or what changes with it.
_VERSION = (
    *("ETag", "etag", "e_tag", "LastModified", "last_modified", "Last-Modified", "Content-MD5"),
    *("Digest", "generation", "md5Hash", "CRC", "date_time", "mtime", "ino"),
)
_ARCHIVE_BLOCK = 1 << 18  # bytes of an archive that are asked for at once, at least
_ARCHIVES_KEPT = 8
_BELIEVED = 60.0  # seconds after an archive was opened that what it lacks is missing

Result = TypeVar("Result")


@dataclass(frozen=True)
class Description:
    """What is known of a file without reading it: bytes, and what changes whenever it does."""

    size: int | None
    version: str | None


def read(url: str, start: int | None = None, stop: int | None = None) -> bytes:
    """The bytes of a file, or those from `start` to before `stop`.

    Raises:
        FileNotFoundError: there is no such file.
        RemoteError: it cannot be read, after several tries, or has no such bytes.
        ConfigError: no package for URLs of this kind is installed.
    """

    def read_it(system: Any, path: str) -> bytes:
        data = system.cat_file(path, start=start, end=stop)
        if start is not None and stop is not None and len(data) != stop - start:
            raise OSError(f"gave {len(data)} bytes where {stop - start} were asked for")
        return data

    return _attempt(url, read_it)


def describe(url: str) -> Description:
    """What is known of a file. Raises as `read` does."""
    return _attempt(url, _described)


def download(url: str, file: Path) -> Description:
    """Copies a file, as it is at one moment; what it is. Raises as `read`, or OSError: no room."""

    def copy(system: Any, path: str) -> Description:
        before = _described(system, path)
        system.get_file(path, str(file))
        copied = file.stat().st_size
        if before.size not in (None, copied):
            raise OSError(f"has {before.size} bytes, of which {copied} came")
        if _described(system, path) != before:
            raise OSError("it was changed while it was read")
        return before

    return _attempt(url, copy)


def _attempt(url: str, action: Callable[[Any, str], Result]) -> Result:
    """Call `action` with the file system of a URL and the path there, see `retry`."""
    name = without_query(url)

    def attempt() -> Result:
        try:
            system, path, guard = _opened(url)
            with guard:
                return action(system, path)
        except Exception as error:
            _forget_archive(url, error)
            raise

    try:
        return retry(name, attempt)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
    except ImportError as error:
        raise ConfigError(
            f"{name}: a package is missing for such URLs ({error}): for http and s3 install "
            "detlite[remote], for others what fsspec names"
        ) from error


@dataclass(frozen=True)
class _Archive:
    """An archive whose table was read, at a time of the monotonic clock."""

    system: Any
    guard: AbstractContextManager[Any]
    since: float


# By process (after a fork each opens its own), protocol and the URL of the archive.
_archives: dict[tuple[int, str, str], _Archive] = {}


def _opened(url: str) -> tuple[Any, str, AbstractContextManager[Any]]:
    """The file system of a URL, the path there, and within what it is to be used."""
    import fsspec.core  # it takes a while, and local data sets do not need it

    first, _, rest = url.partition("::")
    protocol, mark, path = first.partition("://")
    try:
        if rest and mark:
            archive = _archive(protocol, rest)
            return archive.system, path, archive.guard
        # Its own cache knows processes apart.
        return *fsspec.core.url_to_fs(url, **_options(url)), nullcontext()
    except ValueError as error:
        if "rotocol not known" in str(error):
            raise ConfigError(f"{without_query(url)}: fsspec knows no such protocol") from error
        raise


def _archive(protocol: str, rest: str) -> _Archive:
    """An archive, opened once. Threads that come first at the same time may each open it."""
    import fsspec.core
    from fsspec.archive import AbstractArchiveFileSystem

    key = (os.getpid(), protocol, rest)
    if found := _archives.get(key):
        return found
    system, _ = fsspec.core.url_to_fs(f"{protocol}://::{rest}", **_options(rest, _ARCHIVE_BLOCK))
    if isinstance(system, AbstractArchiveFileSystem):
        system.ls("")  # fills its directory, in which other threads would miss members meanwhile
    # Of these zip alone seeks and reads under a lock of its own.
    guard = nullcontext() if protocol == "zip" else threading.Lock()
    archive = _Archive(system, guard, time.monotonic())
    for old in list(_archives)[: 1 - _ARCHIVES_KEPT]:
        _archives.pop(old, None)
    _archives[key] = archive
    return archive


def _forget_archive(url: str, error: Exception) -> None:
    """Drops an archive that a member could not be read from: it may have been replaced."""
    first, _, rest = url.partition("::")
    key = (os.getpid(), first.partition("://")[0], rest)
    found = _archives.get(key)
    missing = isinstance(error, FileNotFoundError)
    if found and not (missing and time.monotonic() - found.since < _BELIEVED):
        _archives.pop(key, None)


def _options(url: str, block: int = 0) -> dict[str, Any]:
    """A limit on silence instead of fsspec's on the whole, which a large file may need longer than.

    Those of fsspec's own configuration go before.
    """
    options: dict[str, Any] = {}
    for protocol in ("http", "https"):
        if re.search(rf"(^|::){protocol}://", url):
            import aiohttp
            from fsspec.config import conf

            limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            given = {**conf.get("http", {}), **conf.get("https", {})}.get("client_kwargs", {})
            options[protocol] = {"client_kwargs": {"timeout": limits, **given}}
            if block:
                options[protocol]["block_size"] = block
    if block and re.search(r"(^|::)s3a?://", url):
        options["s3"] = {"default_block_size": block}
    return options


def _described(system: Any, path: str) -> Description:
    found = system.info(path)
    if found.get("type") == "directory":
        raise IsADirectoryError(f"{path} is a folder")
    version = {key: str(found[key]) for key in _VERSION if found.get(key) is not None}
    return Description(found.get("size"), str(sorted(version.items())) if version else None)
