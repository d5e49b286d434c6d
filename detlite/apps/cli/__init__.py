"""The commands of `detlite`, one module for each, and the options that they share.

The same option has the same name everywhere. Nothing here imports torch: `detlite COMMAND --help`
must answer immediately.
"""

import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any


def add_option(
    parser: ArgumentParser,
    name: str,
    text: str,
    metavar: str | None = None,
    default: Any = None,
    **settings: Any,
) -> None:
    """Add an option with a value. A default is added to the help text, and decides the type.

    The settings are arguments of `add_argument`, and `limits`: (minimum, maximum) of a number.
    """
    if default is not None:
        text += f" (default: {default})"
        settings.setdefault("type", type(default))
    if "limits" in settings:
        settings["action"] = _StoreNumber
    parser.add_argument(name, metavar=metavar, default=default, help=text, **settings)


class _StoreNumber(Action):
    """Stores a number that is checked against `limits`."""

    def __init__(self, *args: Any, limits: tuple[float, float | None], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limits = limits

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, value: Any, option: Any = None
    ) -> None:
        from detlite.config import ConfigError

        low, high = self._limits
        if not (low <= value and (high is None or value <= high)):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{option} {value:g}: must be {allowed}")
        setattr(namespace, self.dest, value)


def add_flag(parser: ArgumentParser, name: str, text: str) -> None:
    """Add an option without a value, which is False by default."""
    parser.add_argument(name, action="store_true", help=text)


def add_config(
    parser: ArgumentParser, default: str | None = "the config inside the checkpoint"
) -> None:
    """Add --config: the YAML file of model, data and training. No `default`: it is required."""
    text = "config: a YAML file, or the name of one of detlite's configs"
    text += f" (default: {default})" if default else ""
    parser.add_argument(
        "--config", "--config-file", metavar="FILE", required=default is None, help=text
    )


def add_weights(parser: ArgumentParser, text: str, required: bool = True) -> None:
    """Add --weights: a checkpoint, by path, URL or catalog name."""
    add_option(parser, "--weights", text, "FILE", required=required)


def add_detector(parser: ArgumentParser, several: bool = False) -> None:
    """Add --weights, --trust and --config of a trained model, or several, that predict."""
    text = "checkpoint of detlite or of another framework, or an exported model"
    text += "; the detections of several are merged" * several
    add_option(parser, "--weights", text, "FILE", required=True, nargs="+" if several else None)
    add_flag(parser, "--trust", "run the code in --weights, if it is a .pt2 file that you trust")
    add_config(parser)


def add_font(parser: ArgumentParser) -> None:
    """Add --font: how drawings write names. `main` applies it."""
    text = "TTF, OTF or TTC file for the names in drawings (default: the first font of the system "
    text += "that has their characters)"
    add_option(parser, "--font", text, "FILE")


def add_overrides(parser: ArgumentParser, device: bool = True) -> None:
    """Add the positional pairs that override config keys, and --device, which is one of them."""
    if device:
        add_option(parser, "--device", "cpu, cuda, cuda:1, mps ... (default: MODEL.DEVICE)")
    text = "override config keys, also written as KEY=VALUE; see docs/config.md"
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help=text)


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
    """Split the overrides, also those after the values of an option, --input a.png SEED 1."""
    for name, words in list(vars(args).items()):
        if isinstance(words, list) and name != "overrides":
            count = 1 + len(list(takewhile(lambda word: not is_key(str(word)), words[1:])))
            setattr(args, name, words[:count])
            args.overrides = [*args.overrides, *map(str, words[count:])]
    args.overrides = split_pairs(args.overrides)


def config_overrides(args: Namespace) -> list[str]:
    """Return the KEY VALUE pairs of the command line, with --device as one of them."""
    return [*args.overrides, *(["MODEL.DEVICE", args.device] if args.device else [])]
