"""Write an HTML page of augmented training images with their objects.

    detlite browse --config cells.yaml --count 24 --output browse.html
    detlite browse --config cells.yaml INPUT.MIN_SIZE_TRAIN "(640,)"

The page shows the images of the first training batches, exactly as training with the same SEED uses
them. It also lists the objects that no anchor fits. docs/report.md explains the page.
"""

from argparse import Namespace
from pathlib import Path

from detlite.apps.cli.options import FONT, OVERRIDES, config, option

OPTIONS = (
    config(None),
    option("--count", None, "number of images to show", 24, minimum=1),
    option("--output", "FILE", "HTML file to write", "browse.html", type=Path),
    FONT,
    OVERRIDES,
)


def run(args: Namespace) -> int:
    from detlite.apps.report.browse_page import browse_page
    from detlite.config import load_config
    from detlite.files.atomic_write import write_file

    page = browse_page(load_config(args.config, args.overrides), args.count)
    write_file(args.output, page.encode())
    print(f"{args.output}: {len(page.encode()) / 2**20:.1f} MiB")
    return 0
