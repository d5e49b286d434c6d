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
           minimum=1),
    option("--check", "FOLDER", "images to compare detections on", type=Path),
    option("--limit", "N", "number of images of --check to compare, spread evenly", 20,
           minimum=1),
    option("--evaluate", "NAME", "dataset for measuring the AP of --int8 (default: DATASETS.TEST)"),
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from detlite.apps.export.export_run import export

    start = time.perf_counter()

    def step(text: str) -> None:
        print(f"{time.perf_counter() - start:4.0f} s: {text}", file=sys.stderr, flush=True)

    return 0 if export(args, step) else 1
