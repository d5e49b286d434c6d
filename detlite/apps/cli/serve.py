"""Detect objects over HTTP: a web page to try the model, and json for programs.

    detlite serve --weights model_final.pth
    curl -F file=@photo.jpg localhost:8000/predict
    curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" localhost:8000/predict

By default, only programs on this machine can connect, because the server has no password. --host
changes this. The server answers only requests to its own address, and takes images only from its
own page; --allow-host and --cors add others. After SIGTERM or SIGINT, it answers all accepted
requests and exits.
"""

from argparse import Namespace

from .options import DEVICE, OVERRIDES, THRESHOLD, TRUST, config, option, weights

OPTIONS = (
    weights("checkpoint of detlite or of another framework, or an exported model", required=True),
    TRUST,
    config(),
    option("--host", None, "address to listen on", "127.0.0.1"),
    option("--port", None, "port to listen on; 0: any free port", 8000),
    THRESHOLD,
    option("--batch-size", "N", "maximum number of images to predict together", 8,
           minimum=1),
    option("--max-requests", "N", "maximum number of requests waiting or running", 64,
           minimum=1),
    option("--timeout", "SECONDS", "time limit of a request, including the upload", 60, type=float,
           minimum=0.001),
    option("--max-bytes", "N", "maximum size of an image file in bytes", 20_000_000,
           minimum=1),
    option("--max-pixels", "N", "maximum number of pixels of an image, at most DATASETS.MAX_PIXELS",
           40_000_000, minimum=1),
    option("--cors", "ORIGIN", "allow requests from web pages of this origin, such as "
           "https://example.org, or '*' for all (may be repeated)", action="append"),
    option("--allow-host", "NAME", "also answer requests to this host name or address, or '*' for "
           "all (may be repeated; default: --host, 127.0.0.1, ::1 and localhost)",
           action="append"),
    DEVICE,
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.batch_predict.predict_images import load_predictor
    from detlite.apps.optional_packages import import_optional

    for package in ("hypercorn", "starlette", "prometheus_client", "python_multipart"):
        import_optional(package, "detlite[serve]")
    from detlite.apps.serve.requests import LOOPBACK, Limits
    from detlite.apps.serve.server import serve

    predictor = load_predictor(
        args.weights, args.threshold, args.overrides, args.config, args.max_pixels, args.trust
    )
    limits = Limits(
        args.max_bytes, predictor.image_options.max_pixels, args.timeout, args.max_requests,
        args.batch_size, predictor.score_thresh,
        hosts=tuple(dict.fromkeys([*LOOPBACK, args.host, *(args.allow_host or ())])),
        origins=tuple(args.cors or ()),
    )  # fmt: skip
    predictor.score_thresh = limits.lowest_threshold
    serve(predictor, limits, args.host, args.port)
    return 0
