"""Downloads from a server on the loopback that breaks in every way that servers do."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from detlite.conversion.download import http as module
from detlite.conversion.download.http import DownloadError, download

CONTENT = bytes(range(256)) * 40_000  # 10 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT at any path but /none, with the faults that a test asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str | None] = []  # the Range of each request
        self.statuses: list[int] = []  # of the first requests, in place of the file
        self.cut_after: list[int] = []  # bytes that the next answers end with
        self.ranges = True
        self.version = '"1"'
        self.content = CONTENT

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/weights.pth"

    def handle_error(self, *_: Any) -> None:
        """Says nothing of connections that the client closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if server.statuses:
            return self.send_error(server.statuses.pop(0))
        if self.path == "/none":
            return self.send_error(404)
        start = 0
        if asked and server.ranges and self.headers.get("If-Range") == server.version:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start > len(server.content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.send_header("ETag", server.version)
        self.end_headers()
        end = start + server.cut_after.pop(0) if server.cut_after else None
        self.wfile.write(server.content[start:end])
        return None

    def log_message(self, *_: Any) -> None:
        """Keeps the output of the tests clean."""


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def left(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.suffix != ".lock"}


def test_a_file_comes_once(server, tmp_path):
    file = tmp_path / "some" / "folder" / "weights.pth"
    for _ in range(2):
        download(server.address, file, SHA256)
        assert file.read_bytes() == CONTENT
    assert server.asked == [None]
    assert left(file.parent) == {"weights.pth"}


def test_a_connection_that_breaks_is_gone_on_with(server, tmp_path):
    server.cut_after = [3_000_000, 0, 0, 0, 2_000_000]  # nothing comes, but not too often
    download(server.address, tmp_path / "w.pth", SHA256[:8])
    assert (tmp_path / "w.pth").read_bytes() == CONTENT
    assert server.asked == [None, *["bytes=3000000-"] * 4, "bytes=5000000-"]


def test_a_later_call_goes_on(server, tmp_path):
    server.cut_after = [4_000_000, 0, 0, 0, 0]
    server.statuses = []
    with pytest.raises(DownloadError, match=r"ended after 4000000 of 10240000 bytes; tried 5 time"):
        download(server.address, tmp_path / "w.pth")
    assert not (tmp_path / "w.pth").exists()
    download(server.address, tmp_path / "w.pth")
    assert server.asked[-1] == "bytes=4000000-"
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["another version", "no ranges", "weak version", "shorter"])
def test_what_cannot_be_gone_on_with_begins_anew(change, server, tmp_path):
    server.version = 'W/"1"' if change == "weak version" else '"1"'
    server.cut_after = [9_000_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError):
        download(server.address, tmp_path / "w.pth")
    if change == "another version":
        server.version, server.content = '"2"', CONTENT[::-1]
    if change == "shorter":  # and a server that takes no notice of versions
        server.content = CONTENT[:1000]
    server.ranges = change != "no ranges"
    download(server.address, tmp_path / "w.pth")
    assert (tmp_path / "w.pth").read_bytes() == server.content
    assert left(tmp_path) == {"w.pth"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status, server, tmp_path):
    server.statuses = [status] * 4
    download(server.address, tmp_path / "w.pth")
    assert len(server.asked) == 5
    server.statuses = [status] * 5
    with pytest.raises(DownloadError, match=f"the server answers {status}; tried 5 times"):
        download(server.address, tmp_path / "other.pth")


def test_an_answer_that_stays_is_not_asked_for_again(server, tmp_path):
    address = server.address.replace("weights.pth", "none")
    with pytest.raises(DownloadError, match=r"/none: the server answers 404 \(Not Found\)"):
        download(address, tmp_path / "w.pth")
    assert server.asked == [None]


def test_another_content_is_not_kept(server, tmp_path):
    with pytest.raises(DownloadError, match=rf"begins with {SHA256[:8]}, not with 01234567: "):
        download(server.address, tmp_path / "w.pth", "01234567")
    assert left(tmp_path) == set()


def test_no_network(tmp_path):
    file = tmp_path / "w.pth"
    with pytest.raises(
        DownloadError, match=r"host\.invalid is not known\. Is there a network\?"
    ) as e:
        download("http://host.invalid/w.pth", file)
    assert f"put the file at {file}" in str(e.value)


def test_nobody_listens(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadError, match=r"cannot be downloaded \(.*refused.*; tried 5 times\)"):
        download(server.address, tmp_path / "w.pth")


def test_a_disk_that_is_full_keeps_what_came(server, tmp_path, monkeypatch):
    opened = Path.open

    def full(path, mode="r", *args, **kwargs):
        file = opened(path, mode, *args, **kwargs)
        if path.suffix == ".part" and mode == "wb":
            write, room = file.write, [2_500_000]

            def limited(block):
                room[0] -= len(block)
                if room[0] < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return write(block)

            monkeypatch.setattr(module, "_BLOCK", 1_000_000)
            return _With(file, limited)
        return file

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DownloadError, match=r"No space left on device.*What was downloaded is kep"):
        download(server.address, tmp_path / "w.pth")
    monkeypatch.setattr(Path, "open", opened)
    download(server.address, tmp_path / "w.pth")
    assert server.asked == [None, "bytes=2000000-"]
    assert (tmp_path / "w.pth").read_bytes() == CONTENT


class _With:
    """A file whose `write` is another function."""

    def __init__(self, file: Any, write: Any) -> None:
        self.file, self.write, self.seek = file, write, file.seek

    def __enter__(self) -> _With:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()


def test_of_many_processes_one_downloads(server, tmp_path):
    with ThreadPoolExecutor(8) as pool:  # a lock is of an open file, so threads are as processes
        list(pool.map(lambda _: download(server.address, tmp_path / "w.pth"), range(8)))
    assert server.asked == [None]
