"""Estimate the gain of more labels from runs on all labels, on half and on a quarter of them.

    detlite learning-curve --data photos --minutes 10 --output output/curve
    detlite learning-curve --config mine.yaml --output output/curve

The runs have the same config, which is chosen for all labels, the same test images and the same
number of steps, which the run on all labels takes in --minutes. The answer is printed, and
report.html in the output folder contains it with the curve. A config must not start from a model
that was trained on these labels.

After Ctrl-C, the same command with --resume continues with the run that was interrupted.

Exit status: 0; 2 for an error that you can fix; 75 after SIGTERM or SIGHUP; 130 after Ctrl-C.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detlite.apps import cli
from detlite.apps.cli.train import INTERRUPTED as INTERRUPTED


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_config(parser, default="chosen from --data")
    text = "folder or annotation file to train on, as in detlite init"
    cli.add_option(parser, "--data", text, "PATH")
    text = "training time of the run on all labels in minutes; the others take as many steps"
    cli.add_option(parser, "--minutes", text, type=float)
    cli.add_option(parser, "--output", "output folder", "FOLDER", type=Path, required=True)
    cli.add_flag(parser, "--resume", "continue the runs in the output folder, if there are any")
    cli.add_overrides(parser)


def run(args: Namespace) -> int:
    from detlite.apps.fewer_labels.learning_curve import learning_curve

    length = [] if args.minutes is None else ["SOLVER.MAX_MINUTES", args.minutes]
    opts = [*length, *cli.config_overrides(args)]
    learning_curve(args.config, args.data, args.output, opts, args.resume)
    print(f"see {args.output / 'report.html'}")
    return 0
