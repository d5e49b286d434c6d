"""Detect objects over HTTP: a web page to try the model, and json for programs.

    detlite serve --weights model_final.pth
    curl -F file=@photo.jpg localhost:8000/predict
    curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" localhost:8000/predict

Only programs on this machine can connect, unless --host says otherwise: there is no password.
SIGTERM and SIGINT end the server after it has answered every accepted request.

Exit status: 0; 2 if the server cannot start.
"""

import argparse

from detlite.apps.cli import (
    add_config,
    add_device,
    add_overrides,
    add_threshold,
    add_trust,
    add_weights,
    config_overrides,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_weights(parser)
    add_trust(parser)
    add_config(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any free one (default: 8000)"
    )
    add_threshold(parser, 0.05)
    add_device(parser)
    parser.add_argument(
        "--batch-size", type=int, default=8, metavar="N",
        help="maximum number of images to predict together (default: 8)",
    )  # fmt: skip
    parser.add_argument(
        "--max-requests", type=int, default=64, metavar="N",
        help="maximum number of requests waiting or running (default: 64)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="SECONDS",
        help="time limit of a request, upload included (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=int, default=20_000_000, metavar="N",
        help="maximum size of an image file (default: 20000000)",
    )  # fmt: skip
    parser.add_argument(
        "--max-pixels", type=int, default=40_000_000, metavar="N",
        help="maximum size of an image, at most DATASETS.MAX_PIXELS (default: 40000000)",
    )  # fmt: skip
    parser.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN",
        help="let web pages of this origin send requests, such as https://example.org, or '*' for "
        "all (may be repeated)",
    )  # fmt: skip
    add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from detlite.apps.batch_predict.predict_images import load_predictor
    from detlite.apps.optional_packages import import_optional

    for package in ("uvicorn", "starlette", "prometheus_client", "python_multipart"):
        import_optional(package, "detlite[serve]")
    from detlite.apps.serve.limits import Limits
    from detlite.apps.serve.server import listen, serve

    limits = Limits(
        args.max_bytes, args.max_pixels, args.timeout, args.max_requests, args.batch_size,
        args.threshold,
    )  # fmt: skip
    overrides = config_overrides(args)
    predictor = load_predictor(
        args.weights, args.threshold, overrides, args.config, limits.pixels, args.trust
    )
    limits = replace(limits, pixels=predictor.max_pixels)
    with listen(args.host, args.port) as listener:
        serve(predictor, limits, listener, args.host, args.cors)
    return 0
