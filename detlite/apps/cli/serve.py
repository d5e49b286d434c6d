"""Answer requests over HTTP: a page to drop pictures on, and json for programs.

    detlite serve --weights model_final.pth
    curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" localhost:8000/predict

Only programs of this machine reach it, unless --host says otherwise: there is no password.
SIGTERM and SIGINT end it once it has answered what it has accepted.

Exit status: 0; 2 when it could not start.
"""

from __future__ import annotations

import argparse
import math
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.apps.batch_predict.batch_predict import load_predictor
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.inference.predictor import Predictor

if TYPE_CHECKING:
    from detlite.apps.serve import Limits

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_intermixed_args(arguments)
    try:
        limits = _limits(args)
        predictor = load_predictor(
            args.weights, args.threshold, args.opts, args.config, limits.pixels
        )
        limits = replace(limits, pixels=predictor.max_pixels)
        listener = _listen(args.host, args.port)
    except (CheckpointError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with listener:
        serve(predictor, limits, listener, args.host)
    return 0


def serve(predictor: Predictor, limits: Limits, listener: socket.socket, host: str) -> None:
    """Serves on a socket that is bound, until a signal ends it."""
    import uvicorn

    from detlite.apps.serve import build_app

    keep_freed_memory()
    shown = f"[{host}]" if ":" in host else host
    print(f"serving on http://{shown}:{listener.getsockname()[1]}", flush=True)
    if host not in _LOOPBACK:
        print("anybody who reaches this address can use it: there is no password", flush=True)
    config = uvicorn.Config(
        build_app(predictor, limits),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    server = uvicorn.Server(config)

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn handles both, and raises them again afterwards, which would be the process's status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[listener])
    print("every request was answered; ended", flush=True)


def _limits(args: argparse.Namespace) -> Limits:
    try:
        import uvicorn  # noqa: F401

        from detlite.apps.serve import Limits
    except ImportError as error:
        raise ConfigError(
            f"a server needs {error.name}, which is not installed: pip install 'detlite[serve]'"
        ) from error
    for name in ("max_bytes", "max_pixels", "seconds", "requests", "batch"):
        if not getattr(args, name) > 0:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} {getattr(args, name):g}: must be more than 0")
    if not 0 <= args.threshold <= 1:
        raise ConfigError(f"--threshold {args.threshold:g}: a score is from 0 to 1")
    return Limits(
        args.max_bytes, args.max_pixels, args.seconds, args.requests, args.batch, args.threshold
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot be listened on ({error}); --port 0 takes a free "
            "port"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="checkpoint, or exported model")
    parser.add_argument(
        "--config", "--config-file", help="YAML file of the model, for weights without a config"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one (8000)")
    parser.add_argument(
        "--threshold", type=float, default=0.05, help="lowest score that is looked for (0.05)"
    )
    parser.add_argument(
        "--batch", type=int, default=8, help="most pictures that are predicted together (8)"
    )
    parser.add_argument(
        "--requests", type=int, default=64, help="most that wait or run at a time (64)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60, help="a request's time, upload included (60)"
    )
    parser.add_argument(
        "--max-bytes", type=int, default=20_000_000, help="of a picture's file (20000000)"
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        default=40_000_000,
        help="of a picture, or DATASETS.MAX_PIXELS if that is less (40000000)",
    )
    parser.add_argument(
        "opts", nargs="*", metavar="KEY VALUE", help="overrides of the checkpoint's config"
    )
    return parser
