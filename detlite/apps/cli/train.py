"""Train a model and evaluate it.

    detlite train --config configs/demo_shapes.yaml SOLVER.BASE_LR 0.01
    detlite train --data photos --minutes 15 --output output/photos
    torchrun --nproc-per-node 2 -m detlite train --config configs/demo_shapes.yaml

Without --config, the rules of `detlite init` choose a config for the data.

The command writes config.yaml, log.txt, metrics.jsonl, TensorBoard events, checkpoints,
evaluation.json, results_<dataset>.json, curves.png, detections.png and report.html to the output
folder.

If torchrun restarts a run (`--max-restarts`), it resumes from its last checkpoint. After Ctrl-C,
SIGTERM or SIGHUP, the run saves a checkpoint at the end of the current iteration and exits.
Schedulers send these signals before they stop a job. A second signal ends the run immediately.

Exit status: 0; 2 for an error that you can fix; 75 after SIGTERM or SIGHUP, and 130 after Ctrl-C
(continue with --resume). Under torchrun, these are the statuses of the individual processes.
"""

from argparse import ArgumentParser, Namespace

from detlite.apps import cli

INTERRUPTED = "interrupted at once; --resume continues from the last checkpoint, if there is one"


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_config(parser, default="chosen from --data")
    text = "folder or annotation file to train on, as in detlite init"
    cli.add_option(parser, "--data", text, "PATH")
    cli.add_weights(parser, "checkpoint to start from (default: MODEL.WEIGHT)", required=False)
    cli.add_option(parser, "--minutes", "training time in minutes", type=float)
    cli.add_option(parser, "--output", "output folder (default: OUTPUT_DIR)", "FOLDER")
    cli.add_flag(parser, "--single-class", "train all categories of --data as one")
    text = "train on the evaluation images, too: a last run, after which none remain to measure it"
    cli.add_flag(parser, "--all", text)
    cli.add_flag(parser, "--resume", "continue the run in the output folder, if there is one")
    cli.add_font(parser)
    cli.add_overrides(parser)


def run(args: Namespace) -> int:
    from detlite.api import is_data, train
    from detlite.config import ConfigError
    from detlite.distributed import restart_count

    if is_data(args.config):
        raise ConfigError(f"--config {args.config}: is not a YAML file; pass data as --data")
    train(
        args.config,
        data=args.data,
        weights=args.weights,
        minutes=args.minutes,
        output_dir=args.output,
        overrides=cli.config_overrides(args),
        resume=args.resume or restart_count() > 0,
        single_class=args.single_class,
        all_images=args.all,
    )
    return 0
