"""Read files at URLs through fsspec, with retries."""

import errno
import os
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from detlite.config import ConfigError
from detlite.files.errors import RemoteError
from detlite.files.retry import retry, without_secrets

_SILENCE = 60.0  # seconds without a byte after which a connection counts as lost
# The names that file systems give to the version of a file, or to what changes with it.
_VERSION_FIELDS = (
    *("ETag", "etag", "e_tag", "LastModified", "last_modified", "Last-Modified", "Content-MD5"),
    *("Digest", "generation", "md5Hash", "CRC", "date_time", "mtime", "ino"),
)
_ARCHIVE_BLOCK = 1 << 18  # minimum number of bytes of an archive that one request reads
_MAX_ARCHIVES = 8  # open at the same time

Result = TypeVar("Result")


@dataclass(frozen=True)
class FileVersion:
    """The size of a file in bytes and a text that changes with its content; None if unknown."""

    size: int | None
    version: str | None


def read(url: str) -> bytes:
    """Return the bytes of a file.

    Raises FileNotFoundError, RemoteError, or ConfigError if the package for URLs of this protocol
    is missing.
    """

    return _with_retries(url, lambda system, path: system.cat_file(path))


def file_version(url: str) -> FileVersion:
    return _with_retries(url, _file_version)


def copy_file(url: str, file: Path) -> FileVersion:
    """Copy a URL to a local file and return its version. Raises the errors of `read`, or OSError.

    The copy is repeated if the version changes meanwhile.
    """

    def copy(system: Any, path: str) -> FileVersion:
        before = _file_version(system, path)
        system.get_file(path, str(file))
        copied = file.stat().st_size
        if before.size not in (None, copied):
            raise OSError(f"received {copied} of {before.size} bytes")
        if _file_version(system, path) != before:
            raise OSError("the file changed during the copy")
        return before

    return _with_retries(url, copy)


def _with_retries(url: str, action: Callable[[Any, str], Result]) -> Result:
    """Call `action` with the file system of a URL and the path in it, see `retry`."""
    name = without_secrets(url)

    def attempt() -> Result:
        system, path, guard = _open_filesystem(url)
        try:
            with guard:
                return action(system, path)
        except FileNotFoundError:
            raise
        except Exception:
            _open_archive.cache_clear()  # an archive may have been replaced
            raise

    try:
        return retry(name, attempt)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from error
    except ImportError as error:
        raise ConfigError(
            f"{name}: the package for this protocol is missing ({error}). Install "
            "detlite[remote] for http and s3, or the package that fsspec names"
        ) from error


def _open_filesystem(url: str) -> tuple[Any, str, AbstractContextManager[Any]]:
    """Return the file system of a URL, the path in it, and the guard for its use."""
    import fsspec.core  # slow to import, and local datasets do not need it

    first, _, container = url.partition("::")
    protocol, mark, path = first.partition("://")
    try:
        if container and mark:
            system, guard = _open_archive(os.getpid(), protocol, container)
            return system, path, guard
        # fsspec caches file systems per process.
        return *fsspec.core.url_to_fs(url, **_options(url)), nullcontext()
    except ValueError as error:
        if "rotocol not known" in str(error):
            raise RemoteError(
                f"{without_secrets(url)}: fsspec does not know the protocol {protocol!r}"
            ) from error
        raise


@lru_cache(maxsize=_MAX_ARCHIVES)
def _open_archive(process: int, protocol: str, url: str) -> tuple[Any, AbstractContextManager[Any]]:
    """Open an archive once per process, since a forked one must not share the open file.

    Threads that start together may each open it.
    """
    import fsspec.core
    from fsspec.archive import AbstractArchiveFileSystem

    system, _ = fsspec.core.url_to_fs(f"{protocol}://::{url}", **_options(url, _ARCHIVE_BLOCK))
    if isinstance(system, AbstractArchiveFileSystem):
        system.ls("")  # fill the directory before other threads look for members in it
    # Only the zip file system locks its file while it seeks and reads.
    return system, nullcontext() if protocol == "zip" else threading.Lock()


def _options(url: str, block: int = 0) -> dict[str, Any]:
    """Return options that limit silence instead of the total time, as large files need more.

    Options of fsspec's configuration take precedence.
    """
    options: dict[str, Any] = {}
    for protocol in ("http", "https"):
        if re.search(rf"(^|::){protocol}://", url):
            import aiohttp
            from fsspec.config import conf

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            configured = {**conf.get("http", {}), **conf.get("https", {})}.get("client_kwargs", {})
            options[protocol] = {"client_kwargs": {"timeout": timeout, **configured}}
            if block:
                options[protocol]["block_size"] = block
    if block and re.search(r"(^|::)s3a?://", url):
        options["s3"] = {"default_block_size": block}
    return options


def _file_version(system: Any, path: str) -> FileVersion:
    info = system.info(path)
    if info.get("type") == "directory":
        raise IsADirectoryError(f"{path} is a folder")
    version = {key: str(info[key]) for key in _VERSION_FIELDS if info.get(key) is not None}
    return FileVersion(info.get("size"), str(sorted(version.items())) if version else None)
