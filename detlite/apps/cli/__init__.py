"""The commands of `detlite`, one module for each, and the options that they share.

The same option has the same name everywhere. Nothing here imports torch: `detlite COMMAND --help`
must answer immediately.
"""

import argparse
from collections.abc import Sequence


def add_config(
    parser: argparse.ArgumentParser,
    required: bool = False,
    default: str = "the config inside the checkpoint",
) -> None:
    """Add --config: the YAML file that describes the model, the data and the training."""
    text = "YAML file, or the name of a config that detlite ships"
    if not required:
        text += f" (default: {default})"
    parser.add_argument("--config", "--config-file", metavar="FILE", required=required, help=text)


def add_weights(parser: argparse.ArgumentParser, required: bool = True, text: str = "") -> None:
    """Add --weights: a checkpoint, by path, URL or catalog name."""
    text = text or "checkpoint of detlite or of another framework, or an exported model"
    parser.add_argument("--weights", metavar="FILE", required=required, help=text)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust, without which exported models that contain code are refused."""
    parser.add_argument(
        "--trust", action="store_true",
        help="run the code in --weights, if it is a .pt2 file whose author you trust",
    )  # fmt: skip


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, which overrides MODEL.DEVICE."""
    parser.add_argument("--device", help="cpu, cuda, cuda:1, mps ... (default: MODEL.DEVICE)")


def add_threshold(parser: argparse.ArgumentParser, default: float | None = None) -> None:
    """Add --threshold, which overrides the score threshold that the checkpoint contains."""
    text = "the best F1 measured in training, or 0.5" if default is None else default
    parser.add_argument(
        "--threshold", type=float, default=default, metavar="SCORE",
        help=f"report detections with at least this score, 0 to 1 (default: {text})",
    )  # fmt: skip


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the positional KEY VALUE or KEY=VALUE pairs that override config keys."""
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY VALUE",
        help="override config keys, also as KEY=VALUE; see docs/config.md",
    )  # fmt: skip


def split_pairs(words: Sequence[str]) -> list[str]:
    """Split each KEY=VALUE among KEY VALUE pairs."""
    pairs: list[str] = []
    for word in words:
        is_key = len(pairs) % 2 == 0
        pairs += word.split("=", 1) if is_key else [word]
    return pairs


def config_overrides(args: argparse.Namespace) -> list[str]:
    """Return the KEY VALUE pairs of the command line, with --device as one of them."""
    device = ["MODEL.DEVICE", args.device] if getattr(args, "device", None) else []
    return [*args.overrides, *device]
