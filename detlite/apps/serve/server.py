"""Run the HTTP service until a signal stops it."""

import asyncio
import math
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hypercorn.asyncio import serve as serve_connections
from hypercorn.config import Config

from detlite.apps.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.inference.predictor import Predictor

from .app import build_app
from .requests import LOOPBACK, Limits

_IDLE_SECONDS = 5.0  # until the header of a request must be complete


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise a ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        problem = f"--host {host} --port {port}: cannot listen there ({error})"
        raise ConfigError(f"{problem}; --port 0 selects a free port") from error


def serve(predictor: Predictor, limits: Limits, host: str, port: int) -> None:
    """Serve on a host until SIGTERM or SIGINT, then finish all requests.

    Raises:
        ConfigError: see `listen`.
    """
    keep_freed_memory()

    async def run(listener: socket.socket) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run_app(build_app(predictor, limits), listener, limits.seconds, stop.wait)

    with listen(host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        print(f"serving on http://{address}:{listener.getsockname()[1]}", flush=True)
        if host not in LOOPBACK:
            hosts = ", ".join(limits.hosts)
            print("anybody who can reach this address can use it: there is no password", flush=True)
            print(f"it answers to {hosts}; add others with --allow-host", flush=True)
        asyncio.run(run(listener))
    print("all requests answered; server stopped", flush=True)


async def run_app(
    app: Any, listener: socket.socket, seconds: float, stop: Callable[[], Awaitable[Any]]
) -> None:
    """Serve an ASGI application on a socket until `stop` returns, then finish all requests.

    A connection is closed `seconds` after its client stopped reading the response, and when twice
    this time has passed since the request. Other limits of requests are in the application.
    """

    async def limited_app(scope: Any, receive: Any, send: Any) -> None:
        limit = None if scope["type"] == "lifespan" else 2 * seconds
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(app(scope, receive, send), limit)

    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * seconds))
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.keep_alive_timeout = _IDLE_SECONDS
    config.graceful_timeout = 2 * seconds + 1
    config.include_server_header = False
    config.loglevel = "WARNING"
    asyncio.get_running_loop().set_exception_handler(_log_error)
    await serve_connections(limited_app, config, shutdown_trigger=stop)


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop, unless it is one of a connection.

    Clients cause those by disappearing or by opening too many connections, which /metrics counts
    as open files. They could fill a disk with messages.
    """
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)
