"""A section of a config of mmdetection, with checks of its keys and values."""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, NoReturn

from .python_config import UnparsedExpression, is_number

# Short even for values that contain others many times.
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 80, 80


def short(value: Any) -> str:
    """Return `repr(value)`, abbreviated if it is long."""
    return _REPR.repr(value)


class ConfigSection:
    """A dict of a config that rejects what the conversion does not know.

    Attributes:
        where: its path in the config, such as "model.backbone", for messages.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"its config has no dict {where}")
        self._values = values
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; ValueError if it is not a literal."""
        value = self._values.get(key, default)
        if isinstance(value, UnparsedExpression):
            raise self._invalid(key, value.text, ", which is not a literal")
        return value

    def numbers(self, key: str, default: Any = None) -> list[float]:
        """Return the value of a key, a number or a sequence of numbers, as a list."""
        value = self.get(key)
        value = default if value is None else value
        numbers = list(value) if isinstance(value, (list, tuple)) else [value]
        if not numbers or not all(is_number(item) for item in numbers):
            raise self._invalid(key, short(value), ", expected numbers")
        return numbers

    def number(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, a number or a sequence of equal numbers."""
        numbers = self.numbers(key, default)
        if len(set(numbers)) > 1:
            raise self._invalid(key, short(numbers), ", expected one number")
        return numbers[0]

    def _invalid(self, key: str, text: str, problem: str) -> ValueError:
        return ValueError(f"its config says {self.where}.{key} = {text}{problem}")

    def section(self, key: str) -> ConfigSection:
        """Return the dict of a key."""
        return ConfigSection(self.get(key), f"{self.where}.{key}")

    def sections(self, key: str) -> list[ConfigSection]:
        """Return the dicts of a key, which has one or a list of them."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)):
            return [self.section(key)]
        return [
            ConfigSection(item, f"{self.where}.{key}[{number}]")
            for number, item in enumerate(value)
        ]

    @property
    def kind(self) -> str:
        """The class in `type`, without its module."""
        return str(self.get("type", "")).rpartition(".")[2]

    def reject(self, key: str, expected: str) -> NoReturn:
        """Raise ValueError: the value of a key is not one of the `expected`."""
        raise self._invalid(key, short(self.get(key)), f": only {expected} is converted")

    def check(
        self, kinds: Collection[str] = (), read: str = "", off: str = "", **only: tuple[Any, ...]
    ) -> None:
        """Reject unknown classes, keys and values.

        Args:
            kinds: the allowed classes; empty: any.
            read: keys, separated by spaces, that are converted elsewhere or change no detection.
            off: keys that must be None or False.
            only: the allowed values of further keys, besides None.
        """
        if kinds and self.kind not in kinds:
            self.reject("type", ", ".join(kinds))
        allowed = only | dict.fromkeys(off.split(), (False,))
        for key in self._values:
            if key == "type" or key in read.split() or str(key).startswith(("loss_", "init_")):
                continue
            if key not in allowed:
                raise ValueError(f"its config has {self.where}.{key}, which is unknown")
            value = self.get(key)
            if value is not None and value not in allowed[key]:
                self.reject(key, ", ".join(map(repr, allowed[key])))
