"""Almost valid responses and names of weights lead to a file, or to an error of one line."""

import itertools
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detlite.checkpoint.weight_catalog import find_weights
from detlite.files import download as module
from detlite.files.download import download, fetch
from tests.fuzz.inputs import mutated_bytes

BODY = b"0123456789" * 10
REDIRECT = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: \"1\"\r\n\r\n" + BODY,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + BODY + b"\r\n0\r\n\r\n",
    REDIRECT + b"/other\r\n\r\n",
    b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 7-99/100\r\nETag: \"1\"\r\n"
    b"Content-Length: 93\r\n\r\n" + BODY[7:],
    b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
]  # fmt: skip
NAMES = [
    "https://host/path/w.pth?key=1#sha256=0123456789abcdef", "http://[::1]:80/a%20b.pth",
    "catalog://ImageNetPretrained/MSRA/R-50", "detectron2://COCO-Detection/x/1/model.pkl",
    "torchvision://ResNet50_Weights.IMAGENET1K_V2", "timm://resnet18.a1_in1k",
    "hf://owner/name/file.safetensors@main", "package://some_package", "folder/w.pth",
]  # fmt: skip


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    responses: Iterator[bytes]


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(5)
        with suppress(OSError):
            self.request.recv(1 << 16)
            self.request.sendall(next(self.server.responses))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    """Serve `responses` one after the other, without waits between attempts and other hosts."""
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra timm")
    resolve = socket.getaddrinfo

    def only_loopback(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch, _Server(("127.0.0.1", 0), _Handler) as running:
        patch.setattr(socket, "getaddrinfo", only_loopback)
        patch.setattr(hub, "hf_hub_download", lambda *_, **__: only_loopback("hub"))
        patch.setattr("detlite.files.retry._FIRST_WAIT", 0.0)
        patch.setattr(module, "_SILENCE", 1.0)
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@given(st.lists(st.sampled_from(RESPONSES).flatmap(mutated_bytes), min_size=1, max_size=4))
@example(RESPONSES[:1])
@example([RESPONSES[0][:80], RESPONSES[3]])
@example([REDIRECT + b"http://[::1/\r\n\r\n"])
@example([REDIRECT + b"http://host:port/\r\n\r\n"])
@example([REDIRECT + b"\x80\xff\r\n\r\n"])
@example([b"HTTP/1.1 200 OK\r\nContent-Length: " + 5000 * b"9" + b"\r\n\r\n"])
@pytest.mark.slow
def test_responses(server, tmp_path_factory, bounded, responses):
    url = f"http://127.0.0.1:{server.server_address[1]}/w.pth"
    file = tmp_path_factory.mktemp("download") / "w.pth"
    for action in (lambda: fetch(url, max_bytes=10_000), lambda: download(url, file)):
        server.responses = itertools.cycle(responses)
        with bounded():
            action()
    assert not file.exists() or file.stat().st_size <= 2000


@given(
    st.sampled_from(NAMES)
    .flatmap(lambda name: mutated_bytes(name.encode()))
    .map(lambda data: data.decode(errors="replace"))
)
@example("https://[::1")
@example("http://host/%00")
@example("detectron2://a/../../b")
@example("https://a\ud800b/c.pth")
@example("~no-such-user/c.pth")
@example("~\0/c.pth")
def test_names(server, tmp_path, bounded, name):
    root = tmp_path / "root"
    with bounded():
        file = find_weights(name, str(root))
        assert not re.match(r"(https?|catalog|detectron2)://", name) or root in file.parents
