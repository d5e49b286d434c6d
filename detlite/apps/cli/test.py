"""Evaluate a checkpoint on the test sets of its config.

    detlite test --weights output/cells/model_final.pth
    detlite test --config configs/demo_shapes.yaml --weights model_final.pth
    detlite test --weights model_final.pth --data val.json --images photos
    torchrun --nproc-per-node 2 -m detlite test --weights model_final.pth

Prints the COCO table and writes evaluation.json, results_<data set>.json and, unless it is the
folder of the training, config.yaml to the output folder.

Exit status: 0; 2 for an error that you can fix.
"""

import argparse

from detlite.apps.cli import (
    add_config,
    add_device,
    add_overrides,
    add_weights,
    config_overrides,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_weights(parser, required=False, text="checkpoint to evaluate (default: MODEL.WEIGHT)")
    parser.add_argument(
        "--data", metavar="FILE", help="COCO annotation file (default: DATASETS.TEST)"
    )
    parser.add_argument(
        "--images", metavar="FOLDER", help="images of --data (default: the folder next to it)"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", help="output folder (default: evaluation/ next to --weights)"
    )
    add_device(parser)
    add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from detlite.api import evaluate
    from detlite.apps.batch_predict.allocator import keep_freed_memory
    from detlite.apps.dataset_formats.coco_files import find_images
    from detlite.config import ConfigError

    if args.images and not args.data:
        raise ConfigError("--images is the image folder of --data: add --data")
    data = None
    if args.data:
        data = (args.data, args.images or find_images(Path(args.data)))
    keep_freed_memory()
    evaluate(
        args.weights,
        config=args.config,
        data=data,
        output_dir=args.output,
        overrides=config_overrides(args),
    )
    return 0
