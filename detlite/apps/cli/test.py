"""Evaluates a checkpoint on the test sets of a config file.

    detlite test --config configs/demo_shapes.yaml MODEL.WEIGHT model_final.pth
    torchrun --nproc-per-node 2 -m detlite test --config ... MODEL.WEIGHT ...

Prints the COCO table and writes evaluation.json, results_<data set>.json and, if it is not the
folder of a training, config.yaml to OUTPUT_DIR.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from detlite.api import evaluate
from detlite.apps.batch_predict.allocator import keep_freed_memory
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.data import DataError, LoaderProcessError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own.

    Returns:
        The exit status: 0, or 2 for what the user can mend.
    """
    parser = argparse.ArgumentParser("detlite test", description=__doc__.splitlines()[0])
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    keep_freed_memory()
    try:
        evaluate(config=args.config, overrides=args.opts)
    # OSError: such as a disk that is full while results are written.
    except (ConfigError, DataError, CheckpointError, LoaderProcessError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
