"""Writes a page about runs: what they reach, where they fail, and whether they differ.

    detlite report output/cells --output report.html
    detlite report output/cells output/cells_larger --output both.html

A RUN is the folder of a training or of a `detlite test`, with config.yaml and the detections,
results_<data set>.json. Of several runs the first is the one that others are compared with. The
page is one file that needs no network: docs/report.md says how to read it.

Exit status: 0, or 2 for what the user can mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from detlite.apps.report.report_page import report_page
from detlite.apps.report.runs import names_of, read_run
from detlite.atomic_write import atomic_open
from detlite.config import ConfigError
from detlite.data import DataError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    args = _parser().parse_args(arguments)
    try:
        if args.resamples < 100:
            raise ConfigError(
                f"--resamples is {args.resamples}: an interval needs 100 draws or more"
            )
        if args.pictures < 0:
            raise ConfigError(f"--pictures is {args.pictures}, but must be 0 or more")
        names = names_of(args.runs)
        if len(set(names)) < len(names):
            raise ConfigError("a run is named twice")
        runs = [read_run(folder, name) for folder, name in zip(args.runs, names, strict=True)]
        page = report_page(runs, args.resamples, args.seed, args.pictures, print)
        with atomic_open(args.output) as file:
            file.write(page)
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "detlite report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a run")
    parser.add_argument(
        "--output", type=Path, default=Path("report.html"), help="the page (report.html)"
    )
    parser.add_argument(
        "--resamples", type=int, default=1000, help="draws of pictures for intervals (1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of these draws (0)")
    parser.add_argument(
        "--pictures", type=int, default=48,
        help="of wrong detections, and of missed objects, of each data set (48)",
    )  # fmt: skip
    return parser
