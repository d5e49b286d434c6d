"""Detect objects over HTTP: a web page to try the model, and json for programs.

    detlite serve --weights model_final.pth
    curl -F file=@photo.jpg localhost:8000/predict
    curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" localhost:8000/predict

By default, only programs on this machine can connect, because the server has no password. --host
changes this. After SIGTERM or SIGINT, the server answers all accepted requests and exits.
"""

from argparse import ArgumentParser, Namespace

from detlite.apps import cli


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_detector(parser)
    cli.add_option(parser, "--host", "address to listen on", default="127.0.0.1")
    cli.add_option(parser, "--port", "port to listen on; 0: any free port", default=8000)
    text = (
        "report detections with at least this score, 0 to 1, unless a request has ?threshold= "
        "(default: the checkpoint's TEST.SCORE_THRESHOLD, or 0.5)"
    )
    cli.add_option(parser, "--threshold", text, "SCORE", type=float, limits=(0, 1))
    text = "maximum number of images to predict together"
    cli.add_option(parser, "--batch-size", text, "N", 8, limits=(1, None))
    text = "maximum number of requests waiting or running"
    cli.add_option(parser, "--max-requests", text, "N", 64, limits=(1, None))
    text = "time limit of a request, including the upload"
    cli.add_option(parser, "--timeout", text, "SECONDS", 60, type=float, limits=(0.001, None))
    text = "maximum size of an image file in bytes"
    cli.add_option(parser, "--max-bytes", text, "N", 20_000_000, limits=(1, None))
    text = "maximum number of pixels of an image, at most DATASETS.MAX_PIXELS"
    cli.add_option(parser, "--max-pixels", text, "N", 40_000_000, limits=(1, None))
    parser.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN",
        help="allow requests from web pages of this origin, such as https://example.org, or '*' "
        "for all (may be repeated)",
    )  # fmt: skip
    cli.add_overrides(parser)


def run(args: Namespace) -> int:
    from dataclasses import replace

    from detlite.apps.batch_predict.predict_images import load_predictor
    from detlite.apps.optional_packages import import_optional

    for package in ("uvicorn", "starlette", "prometheus_client", "python_multipart"):
        import_optional(package, "detlite[serve]")
    from detlite.apps.serve.limits import Limits
    from detlite.apps.serve.server import listen, serve

    limits = Limits(
        args.max_bytes, args.max_pixels, args.timeout, args.max_requests, args.batch_size
    )
    overrides = cli.config_overrides(args)
    predictor = load_predictor(
        args.weights, args.threshold, overrides, args.config, limits.pixels, args.trust
    )
    pixels, threshold = predictor.image_options.max_pixels, predictor.score_thresh
    limits = replace(limits, pixels=pixels, threshold=threshold)
    predictor.score_thresh = limits.lowest_threshold
    with listen(args.host, args.port) as listener:
        serve(predictor, limits, listener, args.host, args.cors)
    return 0
