"""The command `detlite`; `python -m detlite` and `torchrun -m detlite` are the same.

detlite train --config configs/demo_shapes.yaml
detlite predict --help
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from detlite import __version__

COMMANDS = {
    "init": "write a config for a data set, or convert it to COCO json",
    "train": "train the model of a config file, and evaluate it",
    "test": "evaluate a checkpoint",
    "predict": "detect objects in pictures",
    "serve": "detect objects in pictures that come over HTTP, with a page to try it",
    "report": "write a page about runs: what they reach, where they fail, whether they differ",
    "browse": "write a page of the training data after augmentation, with anchors",
    "check": "read data sets whole, and name every defect",
    "convert": "convert weights of another framework",
    "export": "write a model for torch.export, AOTInductor, ONNX or OpenVINO",
    "doctor": "say what is installed, and check the operators",
    "analyze": "count parameters, operations and activations of a model",
    "replay": "compute the losses of a batch on which a run ended",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the command line names; returns its exit status."""
    listing = "\n".join(f"  {name:10} {meaning}" for name, meaning in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "detlite",
        description=f"Train, evaluate and use Mask R-CNN models.\n\ncommands:\n{listing}",
        epilog="`detlite COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"detlite {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser.parse_args(given[:1])  # the rest is the command's
    command = importlib.import_module(f"detlite.apps.cli.{args.command}")
    try:
        return int(command.main(given[1:]))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # the status shells give a program that SIGINT ended


if __name__ == "__main__":
    sys.exit(main())
