"""Parameters, operations and activations of the model that a config file describes.

    detlite analyze --config coco/mask_rcnn_R_50_FPN_1x.yaml
    detlite analyze --config cells.yaml --size 1024 1360 --depth 3 MODEL.MASK_ON True

They are counted for one picture, with as many proposals and detections as the config allows. How
long it takes, `detlite benchmark model` measures.

Exit status: 0; 2 for what the user can mend.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from detlite.apps.doctor.flops import PartCost, count_cost
from detlite.config import ConfigError, load_config


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser(
        "detlite analyze",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument(
        "--size",
        type=int,
        nargs=2,
        default=(480, 640),
        metavar=("H", "W"),
        help="of a picture, before it is resized as in evaluation (480 640)",
    )
    parser.add_argument("--depth", type=int, default=2, help="of the parts that are listed (2)")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    try:
        if min(args.size) < 1 or args.depth < 0:
            raise ConfigError("--size needs two numbers above 0, --depth one of at least 0")
        cfg = load_config(args.config, args.opts)
        rows = count_cost(cfg, tuple(args.size), args.depth)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    whole = rows[0]
    print(
        f"\nweights: {4e-6 * whole.parameters:.0f} MB in float32, {2e-6 * whole.parameters:.0f} in "
        "bfloat16; training adds a gradient and, by the optimizer, one number (SGD) or two (AdamW) "
        "for each trained one"
    )
    return 0


def table(rows: Sequence[PartCost]) -> str:
    """The rows, parts indented under what they are in."""
    lines = [("part", "parameters", "trained", "GFLOP", "share", "activations, M")]
    for row in rows:
        indent = "  " * (row.part.count(".") + 1) if row.part else ""
        lines.append(
            (
                f"{indent}{row.part.rpartition('.')[2] or 'model'}",
                f"{row.parameters:,}",
                f"{row.trained:,}",
                f"{row.gflop:.2f}",
                f"{row.share:.1f} %",
                f"{row.activations:.2f}",
            )
        )
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([part.ljust(first), *(n.rjust(w) for n, w in zip(numbers, widths, strict=True))])
        for part, *numbers in lines
    )
