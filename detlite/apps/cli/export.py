"""Export a trained model to a file, and verify the file against the model.

    detlite export --weights model_final.pth --format onnx --output model.onnx
    detlite export --weights model_final.pth --format openvino --int8 --output model.openvino

The suffix of the output file is the name of the format: .onnx, .openvino or .pt2 (torch.export).
detlite.Predictor("model.onnx") runs all of them.

After writing the file, the command compares its detections with those of the model: on the images
of --check (default: generated images), in two other sizes, and on an image without objects. It
ignores objects with a score near the threshold of the model, because rounding decides whether they
are detected. It compares an int8 file with the quantized model, and prints the AP before and after
quantization.

Exit status: 0; 1 if the detections differ, or if quantization reduces AP by more than 0.5 points; 2
for an error that you can fix.
"""

import sys
import time
from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import OVERRIDES, config, flag, option, weights

FORMATS = ("onnx", "openvino", "pt2")


OPTIONS = (
    weights("checkpoint to export", required=True),
    config(),
    option("--format", None, "format of the file", choices=FORMATS, required=True),
    option("--output", "FILE", "file to write", type=Path, required=True),
    flag("--int8", "quantize the model (openvino only)"),
    option("--calibrate", "N", "number of training images for the calibration of --int8", 40,
           limits=(1, None)),
    option("--check", "FOLDER", "images to compare detections on", type=Path),
    option("--limit", "N", "number of images of --check to compare, spread evenly", 20,
           limits=(1, None)),
    option("--evaluate", "NAME", "dataset for measuring the AP of --int8 (default: DATASETS.TEST)"),
    flag("--time", "also compare the time per image"),
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.export import exported_detector, verify
    from detlite.apps.export.openvino import to_openvino
    from detlite.checkpoint.loading import build_model_from_checkpoint
    from detlite.config import ConfigError
    from detlite.inference.score_thresh import model_score_thresh

    start = time.perf_counter()

    def step(text: str) -> None:
        print(f"{time.perf_counter() - start:4.0f} s: {text}", file=sys.stderr, flush=True)

    if args.int8 and args.format != "openvino":
        raise ConfigError("--int8 is only supported by the format openvino: add --format openvino")
    exported_detector.check_output_path(args.output, args.format)
    step(f"reading {args.weights}")
    overrides = [*args.overrides, "MODEL.DEVICE", "cpu"]
    cfg, model = build_model_from_checkpoint(args.weights, overrides, args.config)
    cfg = exported_detector.prepare_export(cfg, model)
    images = verify.test_images(cfg, model, args.check, args.limit)
    proposals = [verify.grid_of_boxes(x) for x in images] if model.takes_proposals else None
    datasets = verify.evaluation_sets(cfg, args.evaluate) if args.int8 else []
    target = model
    if args.format == "openvino":
        step("converting the model" + " and calibrating it" * args.int8)
        calibration = verify.calibration_images(cfg, args.calibrate) if args.int8 else ()
        target = to_openvino(model, *calibration)
    step(f"writing {args.output}; tracing a large model takes minutes")
    exported_detector.write_exported(args.output, args.format, cfg, target)
    _, exported = exported_detector.read_exported(args.output, trust=True)
    megabytes = args.output.stat().st_size / 1e6
    print(f"{args.output}: {megabytes:.1f} MB")
    step(f"comparing the file with the model on {len(images)} images")
    # Quantization itself changes the detections; the AP below says by how much.
    reference = target if args.int8 else model
    limits = model_score_thresh(model) or 0.0, model.postprocess.detections_per_image
    difference = verify.compare_detectors(reference, exported, images, proposals, *limits)
    agrees = verify.report_difference(difference)
    for dataset in datasets:
        agrees = verify.report_ap(cfg, model, exported, dataset) and agrees
    if args.time:
        verify.report_time(model, exported, images[0], proposals and proposals[:1])
    return 0 if agrees else 1
