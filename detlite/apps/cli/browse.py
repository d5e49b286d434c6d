"""Write an HTML page of augmented training images with their objects and anchors.

    detlite browse --config cells.yaml --count 24 --output browse.html
    detlite browse --config cells.yaml INPUT.MIN_SIZE_TRAIN "(640,)"

The page shows the images of the first training batches, exactly as training with the same SEED uses
them. It also lists the objects that no anchor matches. docs/report.md explains the page.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detlite.apps import cli


def add_arguments(parser: ArgumentParser) -> None:
    cli.add_config(parser, None)
    cli.add_option(parser, "--count", "number of images to show", default=24, limits=(1, None))
    cli.add_option(parser, "--output", "HTML file to write", "FILE", "browse.html", type=Path)
    cli.add_font(parser)
    cli.add_overrides(parser, device=False)


def run(args: Namespace) -> int:
    from detlite.apps.report.browse_page import browse_page
    from detlite.config import load_config
    from detlite.files.atomic_write import atomic_open

    page = browse_page(load_config(args.config, args.overrides), args.count)
    with atomic_open(args.output) as file:
        file.write(page)
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
