"""Options of the commands: how a command declares them, and those that several commands share.

A command has a table of them, `OPTIONS`. The same option has the same name everywhere. Nothing here
imports torch: `detlite COMMAND --help` must answer immediately.
"""

import re
from argparse import Action, ArgumentParser, Namespace
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
        settings: arguments of `add_argument`, and the `minimum` of a number.
    """
    if default is not None:
        text += f" (default: {default})"
        settings.setdefault("type", type(default))
    if "minimum" in settings:
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


class _StoreNumber(Action):
    """Stores a number that is at least `minimum`."""

    def __init__(self, *args: Any, minimum: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._minimum = minimum

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, value: Any, option: Any = None
    ) -> None:
        if not value >= self._minimum:
            raise ConfigError(f"{option} {value:g}: must be at least {self._minimum}")
        setattr(namespace, self.dest, value)


def _is_key(word: Any) -> bool:
    """Return True for a config key such as MODEL.DEVICE, or KEY=VALUE, and not for a file."""
    key = re.fullmatch(r"[A-Z][A-Z0-9_.]*(=.*)?", str(word))
    return key is not None and not Path(word).exists()


def collect_overrides(args: Namespace) -> None:
    """Split the overrides, also those after the values of an option, --input a.png SEED 1.

    Those of --device become the last pair.
    """
    words: list[str] = args.overrides
    for name, values in list(vars(args).items()):
        if isinstance(values, list) and name != "overrides":
            first = 0 if name == "runs" else 1  # an option has a value
            keys = (n for n, value in enumerate(values) if n >= first and _is_key(value))
            count = next(keys, len(values))
            setattr(args, name, values[:count])
            words = [*words, *map(str, values[count:])]
    args.overrides = []
    for word in words:
        is_key = len(args.overrides) % 2 == 0
        args.overrides += word.split("=", 1) if is_key else [word]
    if getattr(args, "device", None):
        args.overrides += ["MODEL.DEVICE", args.device]
