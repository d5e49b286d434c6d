"""Test `detlite serve` as a process under load, its end, and idle and stuck clients.

`clients.py` is the long form of the load.
"""

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from yacs.config import CfgNode

from tests.apps.serve.clients import noise_jpeg, post, run_clients, start_server
from tests.builders import write_weights

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from detlite.apps.serve import app as app_module  # noqa: E402
from detlite.apps.serve.limits import Limits  # noqa: E402
from detlite.apps.serve.server import RateLimit, limited_connection, serve  # noqa: E402

SECONDS = 0.2  # of `limited_connection`
Connect = Callable[..., socket.socket]


@pytest.fixture
def weights(tiny_config: Callable[..., CfgNode], tmp_path: Path) -> str:
    """Return the checkpoint of an untrained model that detects something everywhere."""
    cfg = tiny_config("INPUT.MIN_SIZE_TEST", 64, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    return str(write_weights(cfg, tmp_path / "model.pth"))


@pytest.mark.slow
def test_every_request_is_answered_under_load_and_at_the_end(weights, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process, port = start_server(weights, "--batch-size", "2", "--threshold", "0")
    try:
        outcome = run_clients(port, seconds=3, clients=6)
        assert outcome.sent > 20
        assert dict(outcome.statuses) == {200: outcome.sent}
        assert outcome.wrong == 0
        assert max(outcome.memory) - outcome.memory[0] < 300  # megabytes of warm-up

        # Of sixteen concurrent requests some run and the others wait.
        statuses: list[int] = []
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(16)]
        for connection in connections:
            connection.connect()

        def ask(connection: http.client.HTTPConnection) -> None:
            statuses.append(post(connection, noise_jpeg(300, 300))[0])

        threads = [threading.Thread(target=ask, args=(own,)) for own in connections]
        for thread in threads:
            thread.start()
        while not statuses:
            time.sleep(0.001)
        process.terminate()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 16
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert process.stdout is not None
    assert process.stdout.read() == "all requests answered; server stopped\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer immediately, with 10 MB for /large, and for /slow after a second."""
    if scope["path"] == "/slow":
        time.sleep(5 * SECONDS)
    size = 10_000_000 if scope["path"] == "/large" else 2
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(0, size, 100_000):
        part = bytes(min(size, 100_000))
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


@contextmanager
def serving(limit: int, seconds: float) -> Iterator[int]:
    """Serve `app` in a thread, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = limited_connection(limit, seconds)
        config = uvicorn.Config(
            app, http=connection, lifespan="off", log_level="warning", timeout_keep_alive=60
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connected(port: int, text: bytes) -> socket.socket:
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            one.sendall(text)
            return one

        yield connected


def is_answered(port: int, path: str = "/") -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status == 200


def is_closed(one: socket.socket) -> bool:
    """Wait until the server closes a connection; False after ten seconds."""
    try:
        while one.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"", b"GET / HTT", b"GET / HTTP/1.1\r\nX: ", GET, GET + b"GET / HTTP/1.1\r\nX: y",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
    ],
)  # fmt: skip
def test_connections_without_a_request_are_closed(connect, text):
    with serving(limit=100, seconds=SECONDS) as port:
        start = time.monotonic()
        assert is_closed(connect(port, text))
        assert SECONDS / 2 < time.monotonic() - start < 5


def test_client_that_does_not_read_is_closed(connect):
    with serving(limit=100, seconds=SECONDS) as port:
        one = connect(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(4 * SECONDS)
        received = 0
        with suppress(ConnectionError):
            while part := one.recv(1 << 20):
                received += len(part)
        assert received < 10_000_000


def test_busy_connections_are_kept():
    with serving(limit=100, seconds=SECONDS) as port:
        assert is_answered(port, "/slow")


def test_idle_clients_do_not_keep_others_out(connect):
    with serving(limit=20, seconds=60) as port:
        idle = [connect(port, b"GET / HTTP/1.1\r\nX: ") for _ in range(50)]
        assert is_answered(port)
        idle[-1].settimeout(0.2)
        assert is_closed(idle[0])
        assert not is_closed(idle[-1])


def test_rate_of_log_messages(caplog):
    logger = logging.getLogger("test_rate_of_log_messages")
    logger.addFilter(RateLimit())
    for number in range(100):
        logger.warning("message %d", number)
    logger.warning("another place")
    assert [record.getMessage() for record in caplog.records] == ["message 0", "another place"]


def test_rate_of_failed_batches(monkeypatch):
    """A filter of a logger does not see the messages of the loggers below it."""
    predictor: Any = SimpleNamespace()
    for name in ("uvicorn.error", "asyncio", app_module.__name__):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serve(predictor, Limits(), listener, "127.0.0.1")
    [limit] = app_module.logger.filters
    assert isinstance(limit, RateLimit)
