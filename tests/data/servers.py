"""A local HTTP server that simulates faults."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class FileServer(ThreadingHTTPServer):
    """Serves a folder with ranges and simulated faults.

    Attributes:
        faults: the faults of the next GET requests by path: a status, "cut" (half of the content),
            ("cut", N) (N bytes of the content), "reset" (close the connection), "stall" (send
            nothing), "slow" (send small pieces), "drip" (send single bytes) or "whole" (ignore
            ranges). Further requests succeed.
        asked: number of GET requests by path.
        paths: paths of the GET requests as received.
        ranges: Range headers of the GET requests.
        keys: the last header `X-Key` by path.
        versioned: send ETags.
        weak: send weak ETags.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.faults: dict[str, list[Any]] = {}
        self.asked: Counter[str] = Counter()
        self.paths: list[str] = []
        self.ranges: list[str | None] = []
        self.keys: dict[str, str | None] = {}
        self.versioned = True
        self.weak = False
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.ended = threading.Event()

    def handle_error(self, *args: Any) -> None:
        """Ignore closed connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.server.ranges.append(self.headers.get("Range"))
        self._answer(with_content=True)

    def _answer(self, with_content: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        fault: Any = ""
        if with_content:
            self.server.asked[path] += 1
            self.server.keys[path] = self.headers.get("X-Key")
            fault = (self.server.faults.get(path) or [""]).pop(0)
        file = self.server.folder / path.lstrip("/")
        if isinstance(fault, int) or not file.is_file():
            self._send(fault if isinstance(fault, int) else 404, b"", {}, with_content)
            return
        if fault in ("reset", "stall"):
            if fault == "stall":
                self.server.ended.wait(20)
            self.close_connection = True
            return
        data = file.read_bytes()
        headers = {}
        if self.server.versioned:
            headers["ETag"] = f'{"W/" * self.server.weak}"{md5(data).hexdigest()}"'
            headers["Last-Modified"] = self.date_time_string(int(file.stat().st_mtime))
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        current = self.headers.get("If-Range") in (None, headers.get("ETag"))
        if not requested or not current or fault == "whole":
            self._send(200, data, headers, with_content, fault)
            return
        start, last = int(requested[1]), min(int(requested[2] or len(data)), len(data) - 1)
        if start > last:
            self._send(416, b"", {}, with_content)
            return
        headers["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
        self._send(206, data[start : last + 1], headers, with_content, fault)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], with_content: bool, fault: Any = ""
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not with_content:
            return
        if fault == "cut" or isinstance(fault, tuple):
            self.wfile.write(data[: len(data) // 2 if fault == "cut" else fault[1]])
            self.close_connection = True
        elif fault in ("slow", "drip"):
            size = len(data) // 5 + 1 if fault == "slow" else 1
            for start in range(0, len(data), size):
                self.wfile.write(data[start : start + size])
                if self.server.ended.wait(0.05):
                    return
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
