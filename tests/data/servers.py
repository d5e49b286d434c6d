"""Servers on the loopback: one of files with faults, and one of S3's protocol."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class FileServer(ThreadingHTTPServer):
    """Serves a folder, with ranges, and with the faults that a test asks for.

    Attributes:
        faults: what comes of the next requests (GET) of a path, one after another: a status,
            "cut" (half of the body), "reset" (the connection ends), "stall" (nothing comes),
            "slow" (a body in small pieces) or "whole" (ranges are not known); then all is well.
        asked: GETs by path.
        keys: the last header `X-Key` by path.
        versioned: whether there are ETags.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.faults: dict[str, list[int | str]] = {}
        self.asked: Counter[str] = Counter()
        self.keys: dict[str, str | None] = {}
        self.versioned = True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.ended = threading.Event()

    def handle_error(self, *args: Any) -> None:
        """Clients that go away are none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        fault: int | str = ""
        if with_body:
            self.server.asked[path] += 1
            self.server.keys[path] = self.headers.get("X-Key")
            fault = (self.server.faults.get(path) or [""]).pop(0)
        file = self.server.folder / path.lstrip("/")
        if isinstance(fault, int) or not file.is_file():
            self._status(fault if isinstance(fault, int) else 404, b"", {})
            return
        if fault == "reset":
            self.close_connection = True
            return
        if fault == "stall":
            self.server.ended.wait(20)
            self.close_connection = True
            return
        data = file.read_bytes()
        headers = {"ETag": f'"{md5(data).hexdigest()}"'} if self.server.versioned else {}
        if headers:
            headers["Last-Modified"] = self.date_time_string(int(file.stat().st_mtime))
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and fault != "whole":
            start, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
            self._status(206, data[start : last + 1], headers, with_body, str(fault))
        else:
            self._status(200, data, headers, with_body, str(fault))

    def _status(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        with_body: bool = True,
        fault: str = "",
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not with_body:
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif fault == "slow":
            for start in range(0, len(data), len(data) // 5 + 1):
                self.wfile.write(data[start : start + len(data) // 5 + 1])
                self.server.ended.wait(0.05)
        else:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[FileServer]:
    """A server of a folder, for as long as the block runs."""
    with FileServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()


def upload(client: Any, folder: Path) -> None:
    """Puts all files of a folder into the bucket `sets` of an S3 client."""
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "sets", str(path.relative_to(folder)))
