"""Downloads over HTTP from a local server that fails in every way that servers do."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from detlite.data.errors import RemoteError
from detlite.data.remote import download as module
from detlite.data.remote.download import download, fetch, is_url

CONTENT = bytes(range(256)) * 40_000  # 10 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` at any path except /none, with the faults that a test sets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.ranges: list[str | None] = []  # the Range header of each request
        self.statuses: list[int] = []  # of the first responses, instead of the file
        self.cut_after: list[int] = []  # bytes after which the next responses end
        self.supports_ranges = True
        self.drips = False  # send single bytes with pauses
        self.version = '"1"'
        self.content = CONTENT

    def url(self, path: str = "/weights.pth") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, *_: Any) -> None:
        """Ignore connections that the client closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, byte_range = self.server, self.headers.get("Range")
        server.paths.append(self.path)
        server.ranges.append(byte_range)
        if server.statuses:
            return self.send_error(server.statuses.pop(0))
        if self.path.startswith("/none"):
            return self.send_error(404)
        start = 0
        if byte_range and server.supports_ranges and self.headers["If-Range"] == server.version:
            start = int(byte_range.removeprefix("bytes=").rstrip("-"))
        if start > len(server.content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.send_header("ETag", server.version)
        self.end_headers()
        if server.drips:
            for byte in server.content[:100]:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)
            return None
        end = start + server.cut_after.pop(0) if server.cut_after else None
        self.wfile.write(server.content[start:end])
        return None

    def log_message(self, *_: Any) -> None:
        """Keep the output of the tests clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.0)
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        yield running
        running.shutdown()


def files_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.suffix != ".lock"}


def test_is_url() -> None:
    assert is_url("https://host/a.jpg")
    assert is_url("HTTP://host/a.jpg")
    assert not is_url("http/a.jpg")
    assert not is_url("s3://bucket/a.jpg")


def test_download_skips_an_existing_file(server, tmp_path):
    file = tmp_path / "some" / "folder" / "weights.pth"
    for _ in range(2):
        download(server.url(), file, SHA256)
        assert file.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert files_in(file.parent) == {"weights.pth"}


def test_download_resumes_after_a_broken_connection(server, tmp_path):
    server.cut_after = [3_000_000, 0, 0, 0, 2_000_000]
    download(server.url(), tmp_path / "w.pth", SHA256[:8])
    assert (tmp_path / "w.pth").read_bytes() == CONTENT
    assert server.ranges == [None, *["bytes=3000000-"] * 4, "bytes=5000000-"]


def test_a_later_call_resumes(server, tmp_path):
    server.cut_after = [4_000_000, 0, 0, 0, 0]
    message = r"after 5 attempts \(.*ended after 0 of 6240000 bytes"
    with pytest.raises(RemoteError, match=message):
        download(server.url(), tmp_path / "w.pth")
    assert not (tmp_path / "w.pth").exists()
    download(server.url(), tmp_path / "w.pth")
    assert server.ranges[-1] == "bytes=4000000-"
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["new version", "no ranges", "weak version", "shorter"])
def test_download_restarts_if_it_cannot_resume(change, server, tmp_path):
    server.version = 'W/"1"' if change == "weak version" else '"1"'
    server.cut_after = [9_000_000, 0, 0, 0, 0]
    with pytest.raises(RemoteError):
        download(server.url(), tmp_path / "w.pth")
    if change == "new version":
        server.version, server.content = '"2"', CONTENT[::-1]
    if change == "shorter":  # and the server ignores versions
        server.content = CONTENT[:1000]
    server.supports_ranges = change != "no ranges"
    download(server.url(), tmp_path / "w.pth")
    assert (tmp_path / "w.pth").read_bytes() == server.content
    assert files_in(tmp_path) == {"w.pth"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_statuses_are_retried(status, server, tmp_path):
    server.statuses = [status] * 4
    download(server.url(), tmp_path / "w.pth")
    assert len(server.ranges) == 5
    server.statuses = [status] * 5
    with pytest.raises(RemoteError, match=rf"after 5 attempts \(HTTP status {status}\)"):
        download(server.url(), tmp_path / "other.pth")


def test_permanent_statuses_are_not_retried(server, tmp_path):
    with pytest.raises(RemoteError, match=r"/none: cannot be read \(HTTP status 404\)"):
        download(server.url("/none"), tmp_path / "w.pth")
    assert server.ranges == [None]


def test_content_with_another_hash_is_deleted(server, tmp_path):
    message = rf"begins with {SHA256[:8]}, expected 01234567\. "
    with pytest.raises(RemoteError, match=message):
        download(server.url(), tmp_path / "w.pth", "01234567")
    assert files_in(tmp_path) == set()


def test_unknown_host(tmp_path):
    file = tmp_path / "w.pth"
    with pytest.raises(RemoteError, match=r"host\.invalid/w\.pth: .*host not found") as error:
        download("http://host.invalid/w.pth", file)
    assert f"put the file at {file}" in str(error.value)


def test_refused_connection(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(RemoteError, match=r"cannot be read after 5 attempts \(.*refused"):
        download(server.url(), tmp_path / "w.pth")


def test_full_disk_keeps_the_received_part(server, tmp_path, monkeypatch):
    def full(response, content):
        content.write(response.read(2_000_000))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_copy", full)
        with pytest.raises(OSError, match="No space left on device"):
            download(server.url(), tmp_path / "w.pth")
    download(server.url(), tmp_path / "w.pth")
    assert server.ranges == [None, "bytes=2000000-"]
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


def test_concurrent_calls_download_once(server, tmp_path):
    with ThreadPoolExecutor(8) as pool:  # the lock belongs to an open file, not to a process
        list(pool.map(lambda _: download(server.url(), tmp_path / "w.pth"), range(8)))
    assert server.ranges == [None]


def test_fetch_quotes_the_url(server):
    assert fetch(server.url("/some image ä.jpg?x=1%20")) == CONTENT
    assert server.paths == ["/some%20image%20%C3%A4.jpg?x=1%20"]


def test_fetch_retries_temporary_faults(server):
    server.statuses, server.cut_after = [503], [1000]
    assert fetch(server.url("/a.jpg")) == CONTENT
    assert len(server.paths) == 3


@pytest.mark.parametrize(
    ("path", "statuses", "cut", "requests", "message"),
    [
        ("/none", [], [], 1, r" \(HTTP status 404\)"),
        ("/a", [503, 502, 500, 200], [], 3, r" after 3 attempts \(HTTP status 500\)"),
        ("/a", [], [7, 8, 9], 3, r" after 3 attempts \(.*ended after 9 of 10240000 bytes\)"),
    ],
)
def test_fetch_reports_permanent_faults(server, path, statuses, cut, requests, message):
    server.statuses, server.cut_after = statuses, cut
    with pytest.raises(RemoteError, match=rf"{path}\?\.\.\.: cannot be read{message}$"):
        fetch(server.url(path + "?key=secret"))
    assert len(server.paths) == requests


def test_fetch_limits_size_and_time(server):
    with pytest.raises(RemoteError, match=r"/a.jpg\?\.\.\.: the file is larger than 1000 bytes"):
        fetch(server.url("/a.jpg?key=secret"), max_bytes=1000)
    server.drips = True
    with pytest.raises(RemoteError, match=r"the download took more than 0.2 s"):
        fetch(server.url("/a.jpg"), max_seconds=0.2)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/a.jpg",
        "https://",
        "http://a:b/c",
        "http://example..com/a.jpg",
        "http://[a",
    ],
)
def test_invalid_urls(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.0)
    with pytest.raises(RemoteError, match=r": (cannot be read|the URL is invalid).* \(.+\)$"):
        fetch(url)
