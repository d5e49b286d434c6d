"""Evaluate a checkpoint on the test sets of its config.

    detlite test --weights output/cells/model_final.pth
    detlite test --config configs/demo_shapes.yaml --weights model_final.pth
    detlite test --weights model_final.pth --data val.json --images photos
    torchrun --nproc-per-node 2 -m detlite test --weights model_final.pth

The command prints the table of COCO metrics. It writes evaluation.json and results_<dataset>.json
to the output folder, and also config.yaml, unless it is the output folder of the training.
"""

from argparse import Namespace

from detlite.apps.cli.options import DEVICE, OVERRIDES, config, option, weights
from detlite.errors import ConfigError

OPTIONS = (
    config(),
    weights("checkpoint to evaluate (default: MODEL.WEIGHT)"),
    option("--data", "FILE", "COCO annotation file (default: DATASETS.TEST)"),
    option("--images", "FOLDER", "folder of the images of --data (default: searched for next to "
           "it)"),
    option("--output", "FOLDER", "output folder (default: evaluation/ next to --weights)"),
    DEVICE,
    OVERRIDES,
)  # fmt: skip


def run(args: Namespace) -> int:
    from pathlib import Path

    from detlite.api import evaluate
    from detlite.apps.allocator import keep_freed_memory
    from detlite.apps.dataset_formats.coco_files import find_images

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
        overrides=args.overrides,
    )
    return 0
