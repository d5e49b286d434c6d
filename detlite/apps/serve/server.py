"""Run the HTTP service until a signal stops it."""

import asyncio
import logging
import math
import resource
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.inference.predictor import Predictor

from . import app
from .limits import Limits

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_IDLE_SECONDS = 15.0  # see `LimitedConnection.seconds`


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise a ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        problem = f"--host {host} --port {port}: cannot listen there ({error})"
        raise ConfigError(f"{problem}; --port 0 selects a free port") from error


class LimitedConnection(H11Protocol):
    """An HTTP connection that is closed after a while without a request or if its client is stuck.

    If there are too many connections, each new one closes the oldest one without a request.
    Otherwise, the server would run out of open files and could not accept connections.

    Attributes:
        limit: maximum number of connections.
        seconds: a connection without progress is closed after one to two times this time.
    """

    limit: ClassVar[int] = 512
    seconds: ClassVar[float] = 60.0

    def connection_made(self, transport: Any) -> None:
        """Start the timer, and close another connection if there are too many."""
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._timer = self.loop.call_later(self.seconds, self._end_if_stuck, None)
        if len(self.connections) > self.limit:
            alive: list[Any] = [x for x in self.connections if not x.transport.is_closing()]
            min(alive, key=lambda x: (x._is_busy, x._opened)).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _is_busy(self) -> bool:
        """True while the server works on a request, which has its own deadline."""
        return self.cycle is not None and not (
            self.cycle.response_complete or self.flow.write_paused
        )

    def _end_if_stuck(self, cycle: Any) -> None:
        """Close the connection if it is not busy and had no new request since the last call."""
        if self.cycle is cycle and not self._is_busy:
            self.transport.abort() if self.flow.write_paused else self.transport.close()
        else:
            self._timer = self.loop.call_later(self.seconds, self._end_if_stuck, self.cycle)


def limited_connection(limit: int, seconds: float) -> type[asyncio.Protocol]:
    """Return the class of connections with these limits."""
    return type("Connection", (LimitedConnection,), {"limit": limit, "seconds": seconds})


class RateLimit(logging.Filter):
    """Drop messages of a line of code that logged less than a second ago."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the message should be logged."""
        line, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._last.get(line, -math.inf) < 1:
            return False
        self._last[line] = now
        return True


def serve(
    predictor: Predictor,
    limits: Limits,
    listener: socket.socket,
    host: str,
    origins: Sequence[str] = (),
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT, then finish all accepted requests."""
    keep_freed_memory()
    address = f"[{host}]" if ":" in host else host
    print(f"serving on http://{address}:{listener.getsockname()[1]}", flush=True)
    if host not in _LOOPBACK:
        print("anybody who can reach this address can use it: there is no password", flush=True)
    # Connections may use half of the open files; the rest is for sockets that were accepted but are
    # not connections yet, and for the model.
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = uvicorn.Config(
        app.build_app(predictor, limits, origins),
        http=limited_connection(open_files // 2, min(limits.seconds, _IDLE_SECONDS)),
        ws="none",
        backlog=max(1, open_files // 8),  # also the number of sockets accepted at a time
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    for name in ("uvicorn.error", "asyncio", app.__name__):
        logging.getLogger(name).addFilter(RateLimit())
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn's handlers raise the signal again at the end, which would become the exit status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[listener])
    print("all requests answered; server stopped", flush=True)
