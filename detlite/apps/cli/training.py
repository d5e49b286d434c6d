"""Commands that train and evaluate: train, test."""

import os
from argparse import Namespace

from detlite.errors import ConfigError

from .options import DATA_OPTIONS, DEVICE, FONT, OVERRIDES, command, config, flag, option, weights


@command(
    config("chosen from --data"),
    option("--data", "PATH", "folder or annotation file to train on, as in detlite init"),
    *DATA_OPTIONS,
    weights("checkpoint to start from (default: MODEL.WEIGHT)"),
    option("--minutes", None, "training time in minutes", type=float),
    option("--output", "FOLDER", "output folder (default: OUTPUT_DIR)"),
    flag("--all", "train on the evaluation images, too; none remain to measure this last run"),
    flag("--resume", "continue the run in the output folder, if there is one"),
    FONT,
    DEVICE,
    OVERRIDES,
    interrupted="interrupted at once; --resume continues from the last checkpoint, if there is one",
)  # fmt: skip
def train(args: Namespace) -> int:
    """Train a model and evaluate it.

        detlite train --config configs/demo_shapes.yaml SOLVER.BASE_LR 0.01
        detlite train --data photos --minutes 15 --output output/photos
        torchrun --nproc-per-node 2 -m detlite train --config configs/demo_shapes.yaml

    Without --config, the rules of `detlite init` choose a config for the data.

    The command writes config.yaml, log.txt, metrics.jsonl, TensorBoard events, checkpoints,
    evaluation.json, results_<dataset>.json, curves.png, detections.png and report.html to the
    output folder.

    If torchrun restarts a run (`--max-restarts`), it resumes from its last checkpoint. After
    Ctrl-C, SIGTERM or SIGHUP, the run saves a checkpoint at the end of the current iteration and
    exits. Schedulers send these signals before they stop a job. A second signal ends the run
    immediately.

    Exit status: 0; 2 for an error that you can fix; 75 after SIGTERM or SIGHUP, and 130 after
    Ctrl-C (continue with --resume). Under torchrun, these are the statuses of the individual
    processes."""
    from detlite.apps.api import is_data, train

    if is_data(args.config):
        raise ConfigError(f"--config {args.config}: is not a YAML file; pass data as --data")
    same = ("data", "weights", "minutes", "overrides", "images", "masks", "skip_bad",
            "single_class", "group_by")  # fmt: skip
    train(
        args.config,
        test_data=args.val,
        output_dir=args.output,
        all_images=args.all,
        # torchrun --max-restarts counts the restarts of the processes.
        resume=args.resume or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
        **{name: getattr(args, name) for name in same},
    )
    return 0


@command(
    config(),
    weights("checkpoint to evaluate (default: MODEL.WEIGHT)"),
    option("--data", "FILE", "COCO annotation file (default: DATASETS.TEST)"),
    option("--images", "FOLDER", "image folder of --data (default: searched for next to it)"),
    option("--output", "FOLDER", "output folder (default: evaluation/ next to --weights)"),
    DEVICE,
    OVERRIDES,
)  # fmt: skip
def test(args: Namespace) -> int:
    """Evaluate a checkpoint on the test sets of its config.

        detlite test --weights output/cells/model_final.pth
        detlite test --config configs/demo_shapes.yaml --weights model_final.pth
        detlite test --weights model_final.pth --data val.json --images photos
        torchrun --nproc-per-node 2 -m detlite test --weights model_final.pth

    The command prints the table of COCO metrics. It writes evaluation.json and
    results_<dataset>.json to the output folder, and also config.yaml, unless it is the output
    folder of the training."""
    from pathlib import Path

    from detlite.apps.allocator import keep_freed_memory
    from detlite.apps.api import evaluate
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
