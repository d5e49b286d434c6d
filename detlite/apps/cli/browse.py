"""Write an HTML page of augmented training images with their objects and anchors.

    detlite browse --config cells.yaml --count 24 --output browse.html
    detlite browse --config cells.yaml INPUT.MIN_SIZE_TRAIN "(640,)"

The page shows the images of the first training batches, exactly as SEED draws and augments them,
and lists the objects that no anchor matches. docs/report.md explains the page.

Exit status: 0; 2 for an error that you can fix.
"""

import argparse
from pathlib import Path

from detlite.apps.cli import add_config, add_overrides, config_overrides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, required=True)
    parser.add_argument("--count", type=int, default=24, help="number of images (default: 24)")
    parser.add_argument(
        "--output", type=Path, default=Path("browse.html"), metavar="FILE",
        help="HTML file to write (default: browse.html)",
    )  # fmt: skip
    add_overrides(parser)


def run(args: argparse.Namespace) -> int:
    from detlite.apps.report.browse_page import browse_page
    from detlite.atomic_write import atomic_open
    from detlite.config import ConfigError, load_config

    if args.count < 1:
        raise ConfigError(f"--count is {args.count}, but must be at least 1")
    page = browse_page(load_config(args.config, config_overrides(args)), args.count)
    with atomic_open(args.output) as file:
        file.write(page)
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
