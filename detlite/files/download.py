"""Download files over HTTP: retries, resumed transfers, verified content, size limits."""

import hashlib
import io
import logging
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import FileLock

from .atomic_write import open_to_append
from .errors import RemoteError
from .progress import progress_bar
from .retry import retry, without_secrets

_SILENCE = 30.0  # seconds without a byte after which a connection counts as lost
_BLOCK = 1 << 20  # bytes
_RESERVED = ":/?#[]@!$&'()*+,;=%"  # characters of a URL that are not quoted
_logger = logging.getLogger(__name__)


def is_url(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


def download(url: str, file: Path, sha256: str = "") -> Path:
    """Download a URL to a file unless the file exists, and return the file.

    Received bytes are kept in `<name>.part`, from where a later call resumes if the server's file
    has not changed. If several processes ask for one file, one downloads it and the others wait.
    `sha256` may be the first digits; it is verified for an existing file too.

    Raises RemoteError, or OSError if the file cannot be written.
    """
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(file.name + ".lock")):
            if not file.is_file():  # another process may have downloaded it
                _download(url, file, sha256)
    elif sha256:
        with file.open("rb") as content:
            _check_hash(f"{file} (from {without_secrets(url)})", content, sha256)
    return file


def fetch(url: str, max_bytes: int = 1 << 28, max_seconds: float = 300.0) -> bytes:
    """Download a URL into memory. Raises RemoteError, also if it is too large or too slow."""
    name = without_secrets(url)

    def transfer() -> bytes:
        content = io.BytesIO()
        deadline = time.monotonic() + max_seconds
        with _open(url, {}) as response:
            for size in _copy(response, content):
                if size > max_bytes:
                    raise RemoteError(f"{name}: the file is larger than {max_bytes} bytes")
                if time.monotonic() > deadline:
                    raise RemoteError(f"{name}: the download took more than {max_seconds:g} s")
        return content.getvalue()

    return retry(name, transfer, attempts=3)


def _download(url: str, file: Path, sha256: str) -> None:
    part, version_file = (file.with_name(file.name + end) for end in (".part", ".part.version"))
    name = without_secrets(url)
    _logger.info("downloading %s to %s", name, file)
    with open_to_append(part) as content:
        try:
            retry(
                name,
                lambda: _resume(url, content, version_file),
                progress=lambda: content.seek(0, io.SEEK_END),
            )
        except RemoteError as error:
            raise RemoteError(
                f"{error}. Check the network and try again, or put the file at {file}"
            ) from error
        version_file.unlink(missing_ok=True)
        if sha256:
            try:
                _check_hash(name, content, sha256)
            except RemoteError:
                part.unlink()
                raise
    part.replace(file)


def _check_hash(name: str, content: IO[bytes], sha256: str) -> None:
    digest = hashlib.sha256()
    content.seek(0)
    while block := content.read(_BLOCK):
        digest.update(block)
    if not digest.hexdigest().startswith(sha256):
        raise RemoteError(
            f"{name}: the SHA-256 of the content starts with {digest.hexdigest()[: len(sha256)]}, "
            f"expected {sha256}. The file is not the published one: delete it if it exists and try "
            "again, or get it from elsewhere"
        )


def _resume(url: str, content: IO[bytes], version_file: Path) -> None:
    """Append the rest of a file, or download all of it if the server's file changed."""
    version = version_file.read_text() if version_file.is_file() else ""
    start = content.seek(0, io.SEEK_END) if version else 0
    try:
        response = _open(url, {"Range": f"bytes={start}-", "If-Range": version} if start else {})
    except HTTPError as error:
        if error.code == 416:
            content.truncate(0)  # the server's file is shorter now: the next attempt gets all of it
        raise
    with response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            content.truncate(0)
            if response.status == 206:
                raise ConnectionError("the server sent another range than requested")
        version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        # A weak tag does not guarantee equal bytes.
        version_file.write_text("" if version.startswith("W/") else version)
        start = content.seek(0, io.SEEK_END)
        with progress_bar(
            desc=version_file.name.removesuffix(".part.version"),
            total=start + (response.length or 0) or None,
            initial=start, unit="B", unit_scale=True,
        ) as bar:  # fmt: skip
            for size in _copy(response, content):
                bar.update(start + size - bar.n)


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https, but not from https to http."""

    def redirect_request(self, request: Request, *args: Any) -> Request | None:
        if not args[-1].lower().startswith(("https://", f"{request.type}://")):
            name, target = without_secrets(request.full_url), without_secrets(args[-1])
            raise RemoteError(
                f"{name}: the server redirects to {target}, which is not protected like https. Use "
                "that URL if you trust it"
            )
        return super().redirect_request(request, *args)


def _open(url: str, headers: Mapping[str, str]) -> HTTPResponse:
    """Send a GET request. Raises ValueError or InvalidURL for an invalid URL."""
    headers = {"User-Agent": "detlite", "Accept-Encoding": "identity", **headers}
    if "@" in urlsplit(url).netloc:
        raise ValueError("a URL with a user name or password is not supported")
    request = Request(quote(url, safe=_RESERVED), headers=headers)
    response = build_opener(_Redirects).open(request, timeout=_SILENCE)
    length = response.headers.get("Content-Length", "0")
    if not length.isdecimal():
        raise ValueError(f"the server sends an invalid Content-Length, {length[:20]!r}")
    return response


def _copy(response: HTTPResponse, content: IO[bytes]) -> Iterator[int]:
    """Write a response to `content`; yield the number of bytes so far."""
    expected, size = response.length, 0
    while block := response.read1(_BLOCK):
        content.write(block)
        size += len(block)
        yield size
    content.flush()
    if expected is not None and size < expected:
        raise ConnectionError(f"the connection ended after {size} of {expected} bytes")
