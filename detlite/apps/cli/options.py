"""Options of the commands: how a command declares them, and those that several commands share.

A command has a table of them, `OPTIONS`. The same option has the same name everywhere. Nothing here
imports torch: `detlite COMMAND --help` must answer immediately.
"""

import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from detlite.errors import ConfigError

Option = tuple[str, dict[str, Any]]  # its names, separated by spaces, and how it is parsed


def option(
    names: str,
    metavar: str | tuple[str, ...] | None,
    text: str,
    default: Any = None,
    **settings: Any,
) -> Option:
    """Return an option with a value, or positional arguments.

    Args:
        metavar: name of the value in help texts; None: its choices.
        text: help text, to which a default is added.
        default: also decides the type of the value, unless there is a `type`.
        settings: arguments of `add_argument`, and `limits`: (minimum, maximum) of a number.
    """
    if default is not None:
        text += f" (default: {default})"
        settings.setdefault("type", type(default))
    if "limits" in settings:
        settings["action"] = _StoreNumber
    return names, {"metavar": metavar, "help": text, "default": default, **settings}


def flag(name: str, text: str) -> Option:
    """Return an option without a value, which is False by default."""
    return name, {"action": "store_true", "help": text}


def config(default: str | None = "the config inside the checkpoint") -> Option:
    """Return --config: the YAML file of model, data and training. No `default`: it is required."""
    text = "config: a YAML file, or the name of one of detlite's configs"
    text += f" (default: {default})" if default else ""
    return option("--config --config-file", "FILE", text, required=default is None)


def weights(text: str, **settings: Any) -> Option:
    """Return --weights: a checkpoint, by path, URL or catalog name."""
    return option("--weights", "FILE", text, **settings)


def parse_threshold(text: str) -> float | dict[str, float | None]:
    """Parse a score, "0.5", or scores by category, "car=0.7,bus"."""
    try:
        return float(text)
    except ValueError:
        rows = [part.rpartition("=") for part in text.split(",")]
        return {name if sep else last: float(last) if sep else None for name, sep, last in rows}


THRESHOLD = option("--threshold", "SCORE", "report detections with at least this score, 0 to 1; or "
                   "NAME=SCORE,NAME,...: only detections of these categories, with at least their "
                   "own or the default score (default: the score with the best F1 in training, or "
                   "0.5)", type=parse_threshold)  # fmt: skip
TRUST = flag("--trust", "run the code in --weights, if it is a .pt2 file that you trust")
# How drawings write names. `run_command` applies it.
FONT = option("--font", "FILE", "TTF, OTF or TTC file for the names in drawings (default: the "
              "first font of the system that has their characters)")  # fmt: skip
DEVICE = option("--device", None, "cpu, cuda, cuda:1, mps ... (default: MODEL.DEVICE)")
# The positional pairs that override config keys; --device is one of them.
OVERRIDES = option("overrides", "KEY VALUE", "override config keys, also written as KEY=VALUE; see "
                   "docs/config.md", nargs="*")  # fmt: skip


# How `detlite init` and `detlite train` read --data.
DATA_OPTIONS = (
    option("--val", "PATH", "annotation file or folder to evaluate on (default: a part of the "
           "data)", type=Path),
    option("--images", "FOLDER", "folder of the images (default: searched for next to the "
           "annotation files)", type=Path),
    option("--masks", None, "meaning of mask images: each value is an object; each connected piece "
           "of a value is an object; the same, and each value is a category (default: stop if it "
           "is ambiguous)", choices=["instances", "connected", "semantic"]),
    flag("--skip-bad", "skip invalid labels, ignore their regions, and report them (default: "
         "stop)"),
    flag("--single-class", "train all categories as one"),
    option("--group-by", "NAME", "keep images together that agree in a member of their entries in "
           "COCO json, such as patient_id, or in the part of their names that a pattern matches, "
           "such as 'patient\\d+'"),
)  # fmt: skip


def add_options(parser: ArgumentParser, options: Sequence[Option]) -> None:
    """Add the options of a command to its parser."""
    for names, settings in options:
        parser.add_argument(*names.split(), **settings)


class _StoreNumber(Action):
    """Stores a number that is checked against `limits`."""

    def __init__(self, *args: Any, limits: tuple[float, float | None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limits = limits

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, value: Any, option: Any = None
    ) -> None:
        low, high = self._limits
        if not (low <= value and (high is None or value <= high)):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{option} {value:g}: must be {allowed}")
        setattr(namespace, self.dest, value)


def is_key(word: str) -> bool:
    """Return True for a config key such as MODEL.DEVICE, or KEY=VALUE, and not for a file."""
    return re.fullmatch(r"[A-Z][A-Z0-9_.]*(=.*)?", word) is not None and not Path(word).exists()


def split_pairs(words: Sequence[str]) -> list[str]:
    """Split each KEY=VALUE among KEY VALUE pairs."""
    pairs: list[str] = []
    for word in words:
        is_key = len(pairs) % 2 == 0
        pairs += word.split("=", 1) if is_key else [word]
    return pairs


def collect_overrides(args: Namespace) -> None:
    """Split the overrides, also those after the values of an option, --input a.png SEED 1.

    Those of --device become the last pair.
    """
    for name, words in list(vars(args).items()):
        if isinstance(words, list) and name != "overrides":
            count = 1 + len(list(takewhile(lambda word: not is_key(str(word)), words[1:])))
            setattr(args, name, words[:count])
            args.overrides = [*args.overrides, *map(str, words[count:])]
    args.overrides = split_pairs(args.overrides)
    if getattr(args, "device", None):
        args.overrides += ["MODEL.DEVICE", args.device]
