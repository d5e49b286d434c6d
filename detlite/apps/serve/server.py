"""Run the HTTP service until a signal ends it."""

import importlib
import math
import signal
import socket

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.inference.predictor import Predictor

from .limits import Limits

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_packages() -> None:
    """Raise a ConfigError if a package of the extra `serve` is missing."""
    for package in ("uvicorn", "starlette", "prometheus_client"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"detlite serve needs the package {error.name}: pip install 'detlite[serve]'"
            ) from error


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
    """Serve on a listening socket until SIGTERM or SIGINT, then answer all accepted requests."""
    import uvicorn

    from .app import build_app

    keep_freed_memory()
    address = f"[{host}]" if ":" in host else host
    print(f"serving on http://{address}:{listener.getsockname()[1]}", flush=True)
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
