"""Detect objects in images, folders of images, or a video.

    detlite predict --weights model_final.pth --input photos extra.png --output found
    detlite predict --weights model_final.pth --input 'photos/**/*.jpg' --output found --format csv
    torchrun --nproc-per-node 2 -m detlite predict --weights model_final.pth --input list.txt \\
        --output found --format parquet --draw none

--input takes files, folders, globs, URLs, and text files that list paths or URLs; or one video, or
the number of a camera.

The output folder then holds:
    drawn/0001_<name>.jpg   each image with its detections; 1 is its image_id
    results.json            all detections as COCO results, or results.csv
    summary.csv             with --format measures: number, density and area of the objects
    label_images/*.tif      with --label-images tiff: 16-bit images, value k is the k-th object
    images.json             file name and size of each image_id and the categories, as a COCO file
                            without annotations: COCO("images.json").loadRes("results.json")
    detections/*.parquet    the detections with --format parquet
    <name>.mp4              for a video, instead of drawn images
    manifest.json, shards/  the command, and which images are finished or unreadable

The same command continues an interrupted run, with any number of processes.

Exit status: 0; 1 if an image could not be read (it is reported and skipped; under torchrun the
status is 0); 2 for an error that you can fix; 130 after Ctrl-C.
"""

import argparse
from pathlib import Path

from detlite.apps.cli import (
    add_config,
    add_device,
    add_overrides,
    add_threshold,
    add_trust,
    add_weights,
    config_overrides,
)

INTERRUPTED = "interrupted: the same command continues with the remaining images"
FORMATS = ("coco", "csv", "parquet", "measures")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_weights(parser)
    add_trust(parser)
    add_config(parser)
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="IMAGES",
        help="files, folders, globs, URLs or lists (.txt); or one video, or the number of a camera",
    )  # fmt: skip
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FOLDER", help="output folder"
    )
    add_threshold(parser)
    add_device(parser)
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N",
        help="images of similar size to run together (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=int, default=2, metavar="N",
        help="threads that read, resize and draw images (default: 2)",
    )  # fmt: skip
    parser.add_argument(
        "--draw", choices=["jpeg", "png", "none"], default="jpeg",
        help="format of the drawn images (default: jpeg)",
    )  # fmt: skip
    parser.add_argument(
        "--labels", action=argparse.BooleanOptionalAction,
        help="draw name and score of every object, or of none (default: where there is room)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=FORMATS, default="coco",
        help="format of the detections (default: coco); measures: a CSV file of areas, perimeters, "
        "intensities and centroids",
    )  # fmt: skip
    parser.add_argument(
        "--label-images", choices=["tiff", "png"],
        help="also write 16-bit images whose values are the objects, for ImageJ and napari",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", type=int, metavar="N",
        help="images that one process claims at a time (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another run in the output folder"
    )
    parser.add_argument(
        "--tile", type=int, metavar="SIDE", help="cut large images into tiles of SIDE pixels"
    )
    parser.add_argument(
        "--overlap", type=float, metavar="FRACTION",
        help="overlap of neighboring tiles as a fraction of their side (default: 0.2)",
    )  # fmt: skip
    parser.add_argument(
        "--track", action="store_true", help="number objects consistently through a video"
    )
    add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    from detlite.apps.batch_predict.allocator import keep_freed_memory
    from detlite.apps.batch_predict.predict_run import PredictOptions, predict
    from detlite.config import ConfigError
    from detlite.distributed import torchrun_rank

    keep_freed_memory()
    options = PredictOptions(
        weights=args.weights,
        config=args.config,
        inputs=args.input,
        output=args.output,
        overrides=config_overrides(args),
        threshold=args.threshold,
        batch_size=args.batch_size,
        threads=args.threads,
        draw=args.draw,
        format=args.format,
        shard_size=args.shard_size,
        overwrite=args.overwrite,
        tile=args.tile,
        overlap=args.overlap,
        track=args.track,
        trust=args.trust,
        label_images=args.label_images,
        labels=args.labels,
    )
    try:
        totals = predict(options)
    except OSError as error:  # images and weights raise other errors
        raise ConfigError(f"--output {args.output}: cannot write to it ({error})") from error
    if totals is None:
        print(f"finished, except for images that other processes still work on: see {args.output}")
        return 0
    print(
        f"{totals.images} images done, {totals.unreadable} unreadable, {totals.objects} objects: "
        f"see {args.output}"
    )
    # torchrun would end the other processes if one failed.
    return 1 if totals.unreadable and torchrun_rank() == (0, 1) else 0
