"""Run the HTTP service until a signal ends it."""

from __future__ import annotations

import math
import signal
import socket
from typing import TYPE_CHECKING

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.inference.predictor import Predictor

if TYPE_CHECKING:
    from .limits import Limits

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_limits(
    max_bytes: int,
    max_pixels: int,
    timeout: float,
    max_requests: int,
    batch_size: int,
    threshold: float,
) -> Limits:
    """Return the limits of a service after checking them.

    Raises:
        ConfigError: a limit out of range, or a missing package.
    """
    try:
        import uvicorn  # noqa: F401

        from .limits import Limits
    except ImportError as error:
        raise ConfigError(
            f"detlite serve needs the package {error.name}: pip install 'detlite[serve]'"
        ) from error
    values = {
        "max-bytes": max_bytes,
        "max-pixels": max_pixels,
        "timeout": timeout,
        "max-requests": max_requests,
        "batch-size": batch_size,
    }
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"--{name} {value:g}: must be more than 0")
    if not 0 <= threshold <= 1:
        raise ConfigError(f"--threshold {threshold:g}: a score must be between 0 and 1")
    return Limits(max_bytes, max_pixels, timeout, max_requests, batch_size, threshold)


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


def serve(predictor: Predictor, limits: Limits, listener: socket.socket, host: str) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT, and answer what was accepted."""
    import uvicorn

    from .app import build_app

    keep_freed_memory()
    shown = f"[{host}]" if ":" in host else host
    print(f"serving on http://{shown}:{listener.getsockname()[1]}", flush=True)
    if host not in _LOOPBACK:
        print("anybody who can reach this address can use it: there is no password", flush=True)
    config = uvicorn.Config(
        build_app(predictor, limits),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn's own handlers raise the signal again afterwards, which would become the exit status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[listener])
    print("all requests answered; server stopped", flush=True)
