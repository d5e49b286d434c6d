"""Trains the model that a config file describes, and evaluates it.

    detlite train --config configs/demo_shapes.yaml SOLVER.BASE_LR 0.01
    torchrun --nproc-per-node 2 -m detlite train --config configs/demo_shapes.yaml

OUTPUT_DIR then holds config.yaml, log.txt, metrics.jsonl, TensorBoard's events, checkpoints,
evaluation.json, results_<data set>.json, curves.png and detections.png.

A run that torchrun starts anew (`--max-restarts`) goes on from its last checkpoint.

SIGTERM and SIGHUP, by which a scheduler takes the machine back, let the step end and save it; a
second one ends at once.

Exit status: 0; 2 for what the user can mend; 75 when such a signal ended the run, which --resume
goes on with; 130 after Ctrl-C. Under torchrun these are the statuses of the processes, of which
its report tells.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from detlite.api import train
from detlite.config import ConfigError
from detlite.conversion.checkpoint.files import CheckpointError
from detlite.data import DataError, LoaderProcessError
from detlite.distributed import restarts
from detlite.engine.hooks.metrics import NonFiniteLossError
from detlite.engine.hooks.signals import StoppedError

_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
# OSError: such as a disk that is full while results are written.
_MENDABLE = (
    ConfigError, DataError, CheckpointError, NonFiniteLossError, LoaderProcessError, OSError,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, without its name, or the process's own; returns the exit status."""
    parser = argparse.ArgumentParser("detlite train", description=__doc__.splitlines()[0])
    parser.add_argument("--config", "--config-file", required=True, help="YAML file")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in OUTPUT_DIR, if there is one"
    )
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="override config keys")
    args = parser.parse_intermixed_args(arguments)
    try:
        train(args.config, overrides=args.opts, resume=args.resume or restarts() > 0)
    except _MENDABLE as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StoppedError as stopped:
        print(stopped, file=sys.stderr)
        return _STOPPED
    except KeyboardInterrupt:
        print("interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0
