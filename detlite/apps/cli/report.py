"""Write an HTML page about one or several runs: metrics, errors, and whether runs differ.

    detlite report output/cells --output report.html
    detlite report output/cells output/cells_larger --output both.html

A RUN is the output folder of `detlite train` or `detlite test`, with config.yaml and
results_<data set>.json. If there are several, the others are compared with the first. The page is
one file that needs no network; docs/report.md explains it.

Exit status: 0; 2 for an error that you can fix.
"""

import argparse
from pathlib import Path

_MIN_RESAMPLES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a run")
    parser.add_argument(
        "--output", type=Path, default=Path("report.html"), metavar="FILE",
        help="HTML file to write (default: report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--resamples", type=int, default=1000,
        help="bootstrap samples of the images for confidence intervals (default: 1000)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default: 0)")
    parser.add_argument(
        "--examples", type=int, default=48,
        help="wrong detections and missed objects to show for each data set (default: 48)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from detlite.apps.report.report_page import report_page
    from detlite.apps.report.runs import read_run, run_names
    from detlite.atomic_write import atomic_open
    from detlite.config import ConfigError

    if args.resamples < _MIN_RESAMPLES:
        raise ConfigError(
            f"--resamples is {args.resamples}: a confidence interval needs {_MIN_RESAMPLES} or more"
        )
    if args.examples < 0:
        raise ConfigError(f"--examples is {args.examples}, but must be at least 0")
    names = run_names(args.runs)
    if len(set(names)) < len(names):
        raise ConfigError("the same run is named twice: name each output folder once")
    runs = [read_run(folder, name) for folder, name in zip(args.runs, names, strict=True)]
    page = report_page(runs, args.resamples, args.seed, args.examples, print)
    with atomic_open(args.output) as file:
        file.write(page)
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
