"""Export a trained model to a file, and verify the file against the model.

    detlite export --weights model_final.pth --format onnx --output model.onnx
    detlite export --weights model_final.pth --format openvino --int8 --output model.openvino

Files of the formats pt2 (torch.export) and aoti (AOTInductor) end in .pt2, the others in the name
of the format. detlite.Predictor("model.onnx") runs any of them.

The file is read back and its detections are compared with those of the model: on the images of
--check (default: generated ones), in two other sizes, and on an image without objects. Objects
whose score is at the model's threshold, where rounding decides, are not judged. An int8 file is
compared with the quantized model, and the AP before and after quantization is printed.

Exit status: 0; 1 if the detections differ, or quantization loses more than 0.5 points of AP; 2 for
an error that you can fix.
"""

import argparse
import sys
import time
from pathlib import Path

from detlite.apps.cli import add_config, add_overrides, add_weights, config_overrides

FORMATS = ("pt2", "aoti", "onnx", "openvino")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_weights(parser, text="checkpoint to export")
    add_config(parser)
    parser.add_argument("--format", required=True, choices=FORMATS, help="format of the file")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="file to write")
    parser.add_argument("--int8", action="store_true", help="quantize (openvino only)")
    parser.add_argument(
        "--calibrate", type=int, default=40, metavar="N",
        help="number of training images to calibrate --int8 with (default: 40)",
    )  # fmt: skip
    parser.add_argument(
        "--check", type=Path, metavar="FOLDER", help="images to compare the detections on"
    )
    parser.add_argument(
        "--evaluate", metavar="NAME",
        help="data set to measure the AP of --int8 on (default: DATASETS.TEST)",
    )  # fmt: skip
    parser.add_argument("--time", action="store_true", help="also compare the time per image")
    add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    from detlite.apps.export.comparison import compare_detectors
    from detlite.apps.export.exported_detector import (
        check_output_path,
        prepare_export,
        read_exported,
        write_exported,
    )
    from detlite.apps.export.openvino import to_openvino
    from detlite.apps.export.verify import (
        calibration_images,
        evaluation_sets,
        grid_of_boxes,
        report_ap,
        report_difference,
        report_time,
        test_images,
    )
    from detlite.config import ConfigError
    from detlite.conversion.checkpoint.loading import build_model_from_checkpoint
    from detlite.inference.build import own_score_thresh

    start = time.perf_counter()

    def step(text: str) -> None:
        print(f"{time.perf_counter() - start:4.0f} s: {text}", file=sys.stderr, flush=True)

    if args.int8 and args.format != "openvino":
        raise ConfigError("--int8 is only supported by the format openvino: add --format openvino")
    check_output_path(args.output, args.format)
    step(f"reading {args.weights}")
    overrides = [*config_overrides(args), "MODEL.DEVICE", "cpu"]
    cfg, model = build_model_from_checkpoint(args.weights, overrides, args.config)
    cfg = prepare_export(cfg, model)
    images = test_images(cfg, model, args.check)
    proposals = [grid_of_boxes(x) for x in images] if model.takes_proposals else None
    datasets = evaluation_sets(cfg, args.evaluate) if args.int8 else []
    target = model
    if args.format == "openvino":
        step("converting the model" + " and calibrating it" * args.int8)
        calibration = calibration_images(cfg, args.calibrate) if args.int8 else ()
        target = to_openvino(model, *calibration)
    step(f"writing {args.output}; tracing a large model takes minutes")
    write_exported(args.output, args.format, cfg, target)
    _, exported = read_exported(args.output, trust=True)
    megabytes = args.output.stat().st_size / 1e6
    print(f"{args.output}: {megabytes:.1f} MB")
    step(f"comparing the file with the model on {len(images)} images")
    # Quantization itself changes the detections; the AP below says by how much.
    reference = target if args.int8 else model
    limits = own_score_thresh(model) or 0.0, model.postprocess.detections_per_image
    agrees = report_difference(compare_detectors(reference, exported, images, proposals, *limits))
    for dataset in datasets:
        agrees = report_ap(cfg, model, exported, dataset) and agrees
    if args.time:
        report_time(model, exported, images[0], proposals and proposals[:1])
    return 0 if agrees else 1
