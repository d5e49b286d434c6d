"""Run the HTTP service until a signal ends it."""

import logging
import math
import resource
import signal
import socket
import time
from collections.abc import Sequence

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.inference.predictor import Predictor

from .limits import Limits

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_IDLE_SECONDS = 15.0  # see `LimitedConnection.seconds`
_LOG_INTERVAL = 1.0  # seconds


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there ({error}); --port 0 takes any free "
            "port"
        ) from error


class RateLimit(logging.Filter):
    """Drop messages of a place in the code that logged less than a second ago."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the message is to be logged."""
        place, now = (record.pathname, record.lineno), time.monotonic()
        if now - self._last.get(place, -math.inf) < _LOG_INTERVAL:
            return False
        self._last[place] = now
        return True


def serve(
    predictor: Predictor,
    limits: Limits,
    listener: socket.socket,
    host: str,
    origins: Sequence[str] = (),
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT, then answer all accepted requests.

    Args:
        origins: see `build_app`.
    """
    import uvicorn

    from .app import build_app
    from .connections import limited_connection

    keep_freed_memory()
    address = f"[{host}]" if ":" in host else host
    print(f"serving on http://{address}:{listener.getsockname()[1]}", flush=True)
    if host not in _LOOPBACK:
        print("anybody who can reach this address can use it: there is no password", flush=True)
    # Others for accepted sockets that are no connection yet, and for the model.
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = uvicorn.Config(
        build_app(predictor, limits, origins),
        http=limited_connection(open_files // 2, min(limits.seconds, _IDLE_SECONDS)),
        ws="none",
        backlog=max(1, open_files // 8),  # also the number of sockets accepted at a time
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    for name in ("uvicorn.error", "asyncio", "detlite.apps.serve"):
        logging.getLogger(name).addFilter(RateLimit())
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn's own handlers raise the signal again afterwards, which would become the exit status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[listener])
    print("all requests answered; server stopped", flush=True)
