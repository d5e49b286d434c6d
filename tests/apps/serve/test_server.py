"""Test a real server: slow, stuck and many clients, and its end."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from yacs.config import CfgNode

from tests.builders import write_weights

pytest.importorskip("hypercorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from detlite.apps.serve import server
from detlite.apps.serve.app import build_app
from detlite.apps.serve.requests import Limits
from tests.apps.serve.clients import noise_jpeg, post, run_clients, serving, start_server

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW_BODY = (
    b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    b"Content-Length: 1000\r\n\r\nx"
)
SECONDS = 1.0
Connect = Callable[[int, bytes], socket.socket]


async def large_response(scope: Any, receive: Any, send: Any) -> None:
    """An application that sends 20 MB, or 2 bytes for /small."""
    parts = 1 if scope["path"] == "/small" else 200
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(parts):
        body = bytes(2 if parts == 1 else 100_000)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that connects to a port and sends bytes."""
    with ExitStack() as stack:

        def connected(port: int, sent: bytes) -> socket.socket:
            address = ("127.0.0.1", port)
            connection = stack.enter_context(socket.create_connection(address, timeout=10))
            connection.sendall(sent)
            return connection

        yield connected


@pytest.fixture
def short_header_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.3)


def is_answered(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status == 200


def received_until_closed(connection: socket.socket) -> int:
    """Return the number of bytes until the server closes a connection; TimeoutError after 10 s."""
    count = 0
    with suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            count += len(part)
    return count


def test_connections_without_a_request_are_closed(connect, predictor, short_header_time):
    sent = (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nX: ", GET, GET + GET[:9])
    with serving(build_app(predictor, Limits())) as port:
        start = time.monotonic()
        for connection in [connect(port, part) for part in sent]:
            received_until_closed(connection)
            assert 0.2 < time.monotonic() - start < 5


def test_headers_that_arrive_byte_by_byte_are_not_awaited(connect, predictor, short_header_time):
    with serving(build_app(predictor, Limits())) as port:
        connection = connect(port, GET[:-2])
        with suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"X: y\r\n")
                time.sleep(0.05)
            pytest.fail("the connection is still open")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_clients_that_do_not_read_are_disconnected(connect):
    with serving(large_response, SECONDS) as port:
        stuck = [connect(port, GET) for _ in range(5)]
        assert is_answered(port, "/small")
        time.sleep(3 * SECONDS)
        assert all(received_until_closed(connection) < 20_000_000 for connection in stuck)


def test_http2_clients_that_accept_no_data_are_disconnected(connect, short_header_time):
    with serving(large_response, SECONDS) as port:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        no_window = b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\0\0\0"  # SETTINGS_INITIAL_WINDOW_SIZE: 0
        get = b"\0\0\3\1\5\0\0\0\1" + b"\x82\x84\x86"  # :method GET, :path /, :scheme http
        assert received_until_closed(connect(port, preface + no_window + get)) < 1000


def test_slow_clients_do_not_stop_others(connect, predictor, image_file):
    limits = Limits(seconds=4, requests=2)
    with serving(build_app(predictor, limits)) as port:
        idle = [connect(port, b"GET / HTTP/1.1\r\nX: ") for _ in range(20)]
        slow = [connect(port, SLOW_BODY) for _ in range(20)]
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
        assert post(client, image_file())[0] == 200
        client.close()
        assert slow[0].recv(100).startswith(b"HTTP/1.1 408")
        assert len(idle) == 20


def test_busy_connections_are_kept(predictor, model, image_file, short_header_time):
    with serving(build_app(predictor, Limits(bytes=1_000_000))) as port:
        model.gate.clear()
        threading.Timer(1.0, model.gate.set).start()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert post(client, image_file())[0] == 200
        # Too long bodies are read, or the client would see a closed connection.
        assert post(client, bytes(3_500_000))[0] == 413
        client.close()


def test_errors_of_connections_are_not_logged(caplog):
    reported: list[Any] = []
    loop: Any = type("Loop", (), {"default_exception_handler": reported.append})
    server._log_error(loop, {"exception": ConnectionResetError()})
    server._log_error(loop, {"exception": ValueError()})
    assert [type(context["exception"]) for context in reported] == [ValueError]


@pytest.mark.slow
def test_every_request_is_answered_under_load_and_at_the_end(
    tiny_config: Callable[..., CfgNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    weights = str(write_weights(cfg, tmp_path / "model.pth"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process, port = start_server(weights, "--batch-size", "2", "--threshold", "0")
    try:
        outcome = run_clients(port, seconds=3, clients=6)
        assert outcome.sent > 20
        assert dict(outcome.statuses) == {200: outcome.sent}
        assert outcome.wrong == 0
        assert max(outcome.memory) - outcome.memory[0] < 300  # megabytes of warm-up

        # Of sixteen concurrent requests some run and the others wait.
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(16)]
        for connection in connections:
            connection.connect()
        with ThreadPoolExecutor(16) as threads:
            asked = [threads.submit(post, own, noise_jpeg(300, 300)) for own in connections]
            wait(asked, return_when=FIRST_COMPLETED)
            process.terminate()
        assert [request.result()[0] for request in asked] == [200] * 16
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert process.stdout is not None
    assert process.stdout.read() == "all requests answered; server stopped\n"
