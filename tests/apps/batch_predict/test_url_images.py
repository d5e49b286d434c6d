"""Pictures from a server on the loopback that answers in every way that servers do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from detlite.apps.batch_predict import url_images as addresses
from detlite.apps.batch_predict.url_images import fetch, is_address
from detlite.data import DataError

CONTENT = bytes(range(256)) * 1000


class Server(ThreadingHTTPServer):
    """Serves CONTENT at any path but /none, after the faults that a test asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.statuses: list[int] = []  # of the first answers, in place of the file
        self.cut_after: list[int] = []  # bytes that the next answers end with
        self.drips = False  # a byte now and then

    def __call__(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, *_: Any) -> None:
        """Says nothing of connections that the client closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.paths.append(self.path)
        if server.statuses:
            return self.send_error(server.statuses.pop(0))
        if self.path.startswith("/none"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if server.drips:
            for byte in CONTENT[:100]:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(0.02)
            return None
        self.wfile.write(CONTENT[: server.cut_after.pop(0) if server.cut_after else None])
        return None

    def log_message(self, *_: Any) -> None:
        """Keeps the output of the tests clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(addresses, "_PAUSE", 0.0)
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_what_is_an_address() -> None:
    assert is_address("https://host/a.jpg")
    assert is_address("HTTP://host/a.jpg")
    assert not is_address("http/a.jpg")
    assert not is_address("s3://bucket/a.jpg")


def test_a_file_comes(server: Server) -> None:
    assert fetch(server("/some picture ä.jpg?x=1%20")) == CONTENT
    assert server.paths == ["/some%20picture%20%C3%A4.jpg?x=1%20"]


def test_faults_that_pass_are_tried_again(server: Server) -> None:
    server.statuses, server.cut_after = [503], [1000]
    assert fetch(server("/a.jpg")) == CONTENT
    assert len(server.paths) == 3


@pytest.mark.parametrize(
    ("path", "statuses", "cut", "tries", "message"),
    [
        ("/none", [], [], 1, "the server answers 404 Not Found"),
        ("/a", [503, 502, 500, 200], [], 3, "the server answers 500 Internal Server Error"),
        ("/a", [], [7, 8, 9], 3, "the connection ended after 9 of 256000 bytes"),
    ],
)
def test_faults_that_stay_are_named(
    server: Server, path: str, statuses: list[int], cut: list[int], tries: int, message: str
) -> None:  # fmt: skip
    server.statuses, server.cut_after = statuses, cut
    with pytest.raises(DataError) as caught:
        fetch(server(path + "?key=secret"))
    assert str(caught.value) == f"{server(path)}?...: cannot be downloaded ({message})"
    assert len(server.paths) == tries


def test_bounds_of_size_and_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"/a.jpg\?\.\.\.: has more than 1000 bytes"):
        fetch(server("/a.jpg?key=secret"), most_bytes=1000)
    server.drips = True
    monkeypatch.setattr(addresses, "_MOST_SECONDS", 0.2)
    with pytest.raises(DataError, match=r"did not come within 0.2 seconds"):
        fetch(server("/a.jpg"))


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:1/a.jpg",
        "https://",
        "http://a:b/c",
        "http://example..com/a.jpg",
        "http://[a",
    ],
)
def test_addresses_of_nothing(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_PAUSE", 0.0)
    with pytest.raises(DataError, match=r"cannot be downloaded \(.+\)$"):
        fetch(address)
