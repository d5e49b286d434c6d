"""Commands that detect objects: predict, serve."""

from argparse import BooleanOptionalAction, Namespace
from pathlib import Path

from .options import DEVICE, FONT, OVERRIDES, command, config, flag, option, weights

RESULT_FORMATS = (
    "results", "csv", "measures", "coco", "yolo", "labelme", "label-studio", "geojson"
)  # fmt: skip


def threshold(text: str) -> float | dict[str, float | None]:
    """Parse a score, "0.5", or scores by category, "car=0.7,bus"."""
    try:
        return float(text)
    except ValueError:
        rows = [part.rpartition("=") for part in text.split(",")]
        return {name if sep else last: float(last) if sep else None for name, sep, last in rows}


_THRESHOLD = option(
    "--threshold",
    "SCORE",
    "report detections with at least this score, 0 to 1; or NAME=SCORE,NAME,...: only detections "
    "of these categories, with at least their own or the default score (default: the score with "
    "the best F1 in training, or 0.5)",
    type=threshold,
)
_TRUST = flag("--trust", "run the code in --weights, if it is a .pt2 file that you trust")


@command(
    weights("checkpoint of detlite or of another framework, or an exported model", required=True),
    _TRUST,
    config(),
    option("--input", "IMAGES", "images and videos: files, folders, globs, zip files, URLs, lists "
           "(.txt, .csv, -), or the number of a camera", dest="inputs", required=True, nargs="+"),
    option("--output", "FOLDER", "output folder", type=Path, required=True),
    _THRESHOLD,
    option("--batch-size", "N", "number of images of similar size to run together", 1, minimum=1),
    option("--threads", "N", "number of threads that read, resize and draw images", 2, minimum=1),
    option("--draw", None, "format of the drawn images", "jpeg", choices=["jpeg", "png", "none"]),
    option("--labels", None, "draw the names and scores of all objects or none (default: where "
           "there is room)", action=BooleanOptionalAction),
    option("--format", None, "results, csv: the detections; measures: a CSV file of "
           "areas, perimeters, intensities and centroids; coco, yolo, labelme, label-studio: "
           "labels to correct, with copies of the images; geojson: objects for QuPath", "results",
           choices=RESULT_FORMATS),
    option("--label-images", None, "also write 16-bit label images for ImageJ and napari; each "
           "value is an object", choices=["tiff", "png"]),
    option("--workers", "N", "number of processes of Ray Data, on this or several machines, each "
           "with a GPU if there are enough (default: this process predicts)", type=int,
           minimum=1),
    flag("--overwrite", "replace another run in the output folder"),
    option("--tile", "SIDE", "cut large images into tiles of SIDE pixels", type=int),
    flag("--track", "track objects through a video and number them"),
    FONT,
    DEVICE,
    OVERRIDES,
    interrupted="interrupted: the same command continues with the remaining images",
)  # fmt: skip
def predict(args: Namespace) -> int:
    """Detect objects in images, folders of images, or a video.

        detlite predict --weights model_final.pth --input photos extra.png --output found
        detlite predict --weights model_final.pth --input 'a/**/*.jpg' --output found --format csv
        detlite predict --weights model_final.pth --input photos --output labels --format coco
        detlite predict --weights model_final.pth --input list.txt --output found \\
            --format csv --draw none --workers 8

    --input accepts images and videos: files, folders, globs, zip files, URLs (http, s3, rtsp ...),
    lists of them (a .txt file, a .csv file, or - for the standard input), and the number of a
    camera.

    Files in the output folder:
        drawn/0001_<name>.jpg   each image with its detections; 1 is its image_id. A video: .mp4
        results.json            all detections as COCO results, or results.csv
        summary.csv             with --format csv or measures: number, density and size of objects
        label_images/*.tif      with --label-images tiff: 16-bit images, value k is the k-th object
        images.json             file name and size of each image_id and the categories, as a COCO
                                file without annotations, for loadRes("results.json")
        manifest.json           the command and its totals
        progress.jsonl          which images are finished or unreadable; until the end, the names
                                of results and labels in one file end in .part

    Labels in other formats, and except for geojson copies of the images in images/:
        annotations.json        coco: polygons, also for CVAT
        labels/*.txt            yolo, and data.yaml with the categories
        images/*.json           labelme, and labels.txt with the categories
        tasks.json              label-studio: import them into a project with the labeling
                                configuration labels.xml
        geojson/*.geojson       geojson: the objects of each image, for QuPath

    To continue an interrupted run, repeat the command.

    Exit status: 0; 1 if an image could not be read (it is reported and skipped); 2 for an error
    that you can fix; 130 after Ctrl-C."""
    from detlite.apps.allocator import keep_freed_memory
    from detlite.apps.batch_predict.predict_run import predict

    keep_freed_memory()
    totals = predict(args)
    hint = "" if totals.objects else "; --threshold 0.1 shows objects with low scores, too"
    print(f"{totals}: see {args.output}{hint}")
    return 1 if totals.unreadable else 0


@command(
    weights("checkpoint of detlite or of another framework, or an exported model", required=True),
    _TRUST,
    config(),
    option("--host", None, "address to listen on", "127.0.0.1"),
    option("--port", None, "port to listen on; 0: any free port", 8000),
    _THRESHOLD,
    option("--batch-size", "N", "maximum number of images to predict together", 8, minimum=1),
    option("--max-requests", "N", "maximum number of requests waiting or running", 64, minimum=1),
    option("--timeout", "SECONDS", "time limit of a request, with the upload", 60, type=float,
           minimum=0.001),
    option("--max-bytes", "N", "maximum size of an image file in bytes", 20_000_000, minimum=1),
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
def serve(args: Namespace) -> int:
    """Detect objects over HTTP: a web page to try the model, and json for programs.

        detlite serve --weights model_final.pth
        curl -F file=@photo.jpg localhost:8000/predict
        curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" localhost:8000/predict

    By default, only programs on this machine can connect, because the server has no password.
    --host changes this. The server answers only requests to its own address, and takes images only
    from its own page; --allow-host and --cors add others. After SIGTERM or SIGINT, it answers all
    accepted requests and exits."""
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
