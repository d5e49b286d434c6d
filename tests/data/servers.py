"""A local HTTP server that simulates faults, and a helper for a local S3 server."""

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
    """Serves a folder with ranges and simulated faults.

    Attributes:
        faults: the faults of the next GET requests by path: a status, "cut" (half of the content),
            "reset" (close the connection), "stall" (send nothing), "slow" (send small pieces) or
            "whole" (ignore ranges). Further requests succeed.
        asked: number of GET requests by path.
        keys: the last header `X-Key` by path.
        versioned: send ETags.
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
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_content: bool) -> None:
        path = self.path.partition("?")[0]
        fault: int | str = ""
        if with_content:
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
            self._status(206, data[start : last + 1], headers, with_content, str(fault))
        else:
            self._status(200, data, headers, with_content, str(fault))

    def _status(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str],
        with_content: bool = True,
        fault: str = "",
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not with_content:
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
    """Serve a folder during the `with` block."""
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
    """Upload all files of a folder to the bucket `sets`."""
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "sets", str(path.relative_to(folder)))
