"""Files of the web: downloaded once, gone on with where a connection broke, verified."""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock
from tqdm import tqdm

from detlite.config import ConfigError

logger = logging.getLogger(__name__)

_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 5  # in a row without a byte
_PAUSE = 1.0  # seconds after the first of them; doubled after each
_BLOCK = 1 << 20  # bytes
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers that a later attempt may change


class DownloadError(ConfigError):
    """A file that the web does not give."""


class _BrokenError(Exception):
    """What went wrong and may go right another time."""


class _UnknownHostError(Exception):
    """No name server knows it: most often there is no network."""


def download(address: str, file: Path, sha256: str = "") -> None:
    """Downloads a file, unless it is there; of several processes one does it, the others wait.

    What came is kept beside it as `<name>.part`, which the next call goes on with if the server's
    file is still the same. `file` itself appears when it is whole and verified.

    Args:
        address: http or https.
        sha256: hexadecimal digits with which the content's SHA-256 begins; empty: not known.

    Raises:
        DownloadError: no network, an answer other than the file, a full disk, another content.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(file.name + ".lock")):
            if not file.is_file():
                _download(address, file, sha256)
    except OSError as error:
        raise DownloadError(
            f"{file}: cannot be written ({error.strerror or error}); the disk may be full, or the "
            "folder closed to you. What was downloaded is kept"
        ) from error


def _download(address: str, file: Path, sha256: str) -> None:
    part = _Part(file.with_name(file.name + ".part"))
    logger.info("downloading %s to %s", address, file)
    failed, before = 0, part.size
    while True:
        try:
            _fetch_rest(address, part)
            break
        except _BrokenError as error:
            failed = failed + 1 if part.size <= before else 1
            before = part.size
            if failed == _ATTEMPTS:
                raise DownloadError(
                    f"{address}: cannot be downloaded ({error}; tried {failed} times). Is there a "
                    f"network? Try again later, or put the file at {file}"
                ) from error
            time.sleep(_PAUSE * 2 ** (failed - 1))
    found = part.sha256() if sha256 else ""
    if not found.startswith(sha256):
        part.forget()
        raise DownloadError(
            f"{address}: its SHA-256 begins with {found[: len(sha256)]}, not with {sha256}: it is "
            "not the file that was published; try again, or get it from elsewhere"
        )
    part.path.replace(file)
    part.forget()


class _Part:
    """The beginning of a file, and by what its server knows this version of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version_file = path.with_name(path.name + ".version")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def version(self) -> str:
        return self.version_file.read_text() if self.version_file.is_file() else ""

    def sha256(self) -> str:
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        self.version_file.unlink(missing_ok=True)


def _fetch_rest(address: str, part: _Part) -> None:
    """Brings what of a file is missing.

    Raises:
        _BrokenError: the connection broke, or the server is busy.
    """
    have, version = part.size, part.version
    headers = {"User-Agent": "detlite", "Accept-Encoding": "identity"}
    if have and version:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        with _network():
            answer = urlopen(Request(address, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code == 416:  # the file is shorter than what is here
            part.forget()
        if error.code in (*_BUSY, 416):
            raise _BrokenError(f"the server answers {error.code}") from error
        raise DownloadError(
            f"{address}: the server answers {error.code} ({error.reason})"
        ) from error
    except _UnknownHostError as error:
        raise DownloadError(
            f"{address}: {urlsplit(address).hostname} is not known. Is there a network? Try again "
            f"later, or put the file at {part.path.with_suffix('')}"
        ) from error
    with answer:
        place = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        start = int(place[1]) if answer.status == 206 and place else 0
        if start not in (0, have):
            part.forget()
            raise _BrokenError("the server sends another part than was asked for")
        _receive(answer, part, start)


def _receive(answer: HTTPResponse, part: _Part, start: int) -> None:
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    # A weak tag does not promise the same bytes.
    part.version_file.write_text("" if version.startswith("W/") else version)
    length = answer.headers.get("Content-Length")
    total = start + int(length) if length else None
    with (
        part.path.open("r+b" if start else "wb") as file,
        tqdm(
            desc=part.path.stem, total=total, initial=start, unit="B", unit_scale=True, disable=None
        ) as bar,
    ):
        file.seek(start)
        while True:
            with _network():
                block = answer.read(_BLOCK)
            if not block:
                break
            file.write(block)
            bar.update(len(block))
    if total is not None and part.size < total:
        raise _BrokenError(f"the connection ended after {part.size} of {total} bytes")


@contextmanager
def _network() -> Iterator[None]:
    """Tells errors of the network from those of the disk, which are OSErrors too."""
    try:
        yield
    except HTTPError:
        raise
    except URLError as error:
        if isinstance(error.reason, socket.gaierror):
            raise _UnknownHostError from error
        raise _BrokenError(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise _BrokenError(str(error) or type(error).__name__) from error
