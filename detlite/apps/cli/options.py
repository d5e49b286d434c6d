"""Options of the commands: how a command declares them, and those that several commands share.

The same option has the same name everywhere. Nothing here imports torch: `detlite COMMAND --help`
must answer immediately.
"""

import inspect
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Option = tuple[str, dict[str, Any]]  # its names, separated by spaces, and how it is parsed


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        run: returns the exit status. Its docstring is the help text. It imports what it needs
            itself, so that every help text appears without waiting for torch.
        options: the options.
        interrupted: text after Ctrl-C.
    """

    run: Callable[[Namespace], int]
    options: tuple[Option, ...]
    interrupted: str

    @property
    def help(self) -> str:
        """The help text."""
        return inspect.getdoc(self.run) or ""


def command(
    *options: Option, interrupted: str = "interrupted"
) -> Callable[[Callable[[Namespace], int]], Command]:
    """Make a function the command of this name, with these options."""
    return lambda run: Command(run, options, interrupted)


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
        settings["type"] = _at_least(settings.pop("minimum"), settings["type"])
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


# How drawings write names. `run_command` applies it.
FONT = option("--font", "FILE", "TTF, OTF or TTC file for the names in drawings (default: the "
              "first font of the system that has their characters)")  # fmt: skip
DEVICE = option("--device", None, "cpu, cuda, cuda:1, mps ... (default: MODEL.DEVICE)")
# The positional pairs that override config keys; --device is one of them.
OVERRIDES = option("overrides", "KEY VALUE", "override config keys, also written as KEY=VALUE; see "
                   "docs/config.md", nargs="*")  # fmt: skip


# How `detlite init` and `detlite train` read --data.
DATA_OPTIONS = (
    option("--val", "PATH", "file or folder to evaluate on (default: a part of --data)", type=Path),
    option("--images", "FOLDER", "image folder (default: searched for next to annotation files)",
           type=Path),
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


def _at_least(minimum: float, kind: type) -> Callable[[str], float]:
    """Return a function that parses a number of this type, and refuses smaller ones."""

    def parse(text: str) -> float:
        number: float = kind(text)
        if not number >= minimum:
            raise ArgumentTypeError(f"{text}: must be at least {minimum}")
        return number

    parse.__name__ = kind.__name__  # in argparse's message for a text that is no number
    return parse


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
