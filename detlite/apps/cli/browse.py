"""Writes a page of what a model is trained on: images after augmentation, objects, and anchors.

    detlite browse --config cells.yaml --count 24 --output browse.html
    detlite browse --config cells.yaml INPUT.MIN_SIZE_TRAIN "(640,)"

The images are those of training's first batches, as SEED draws and augments them. Objects that no
anchor matches are named. docs/report.md says how to read the page.

Exit status: 0, or 2 for what the user can mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from detlite.apps.report.browse_page import browse_page
from detlite.atomic_write import atomic_open
from detlite.config import ConfigError, load_config
from detlite.data import DataError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser(
        "detlite browse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument("--count", type=int, default=24, help="images (24)")
    parser.add_argument(
        "--output", type=Path, default=Path("browse.html"), help="the page (browse.html)"
    )
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    try:
        if args.count < 1:
            raise ConfigError(f"--count is {args.count}, but must be 1 or more")
        page = browse_page(load_config(args.config, args.opts), args.count)
        with atomic_open(args.output) as file:
            file.write(page)
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
