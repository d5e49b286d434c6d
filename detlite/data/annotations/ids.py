"""Ids of images and categories: as tools write them, and as integers."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

_EXACT = 1 << 53  # floats are exact integers up to it
# The id of an image or category in its file, if that is not the integer `id`.
WRITTEN_ID = "_written_id"


def parse_number(value: Any) -> float | None:
    """Return a finite number, also from its text; otherwise None."""
    if isinstance(value, bool):
        return None
    try:
        value = float(value) if isinstance(value, str) else value
        return value if math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def parse_integer(value: Any) -> int | None:
    """Return an integer of 64 bits, also from a text or a float such as 12.0; otherwise None."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = parse_number(value)
    is_inexact = isinstance(value, float) and not (abs(value) <= _EXACT and value == int(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or is_inexact:
        return None
    return int(value) if -(1 << 63) <= value < 1 << 63 else None


def is_id(value: Any) -> bool:
    """Return True for numbers and texts."""
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)


class Ids:
    """The integers of the ids of a list, which tools write as integers, fractions or texts.

    Integers keep their values. Other ids are new integers above them. So are ids that differ from
    another one only in notation, such as "01" and "1".

    Args:
        ids: the ids as written; see `is_id`.
    """

    def __init__(self, ids: Iterable[Any]) -> None:
        self._integers: dict[int | None, int] = {}
        texts: dict[str, int | None] = {}
        for value in ids:
            number = parse_integer(value)
            if number is not None and str(number) == str(value):
                self._integers[number] = number
            else:
                texts[str(value)] = number
        self._texts: dict[str, int] = {}
        for text, number in texts.items():
            if number is not None and number not in self._integers:
                self._integers[number] = self._texts[text] = number
        largest = max(self._integers.values(), default=0)
        start = max(largest, 0) + 1 if largest < 1 << 62 else 1
        free = (number for number in itertools.count(start) if number not in self._integers)
        self._texts |= zip((text for text in texts if text not in self._texts), free, strict=False)

    @classmethod
    def of_entries(cls, entries: Iterable[Mapping[str, Any]]) -> "Ids":
        """Return the ids of images or categories of a table, see `WRITTEN_ID`."""
        ids = cls(())
        for entry in entries:
            ids._integers[entry["id"]] = entry["id"]
            if WRITTEN_ID in entry:
                ids._texts[str(entry[WRITTEN_ID])] = entry["id"]
        return ids

    def number(self, written: Any) -> int | None:
        """Return the integer of an id in any notation; None if the list has no such id."""
        if type(written) is int and written in self._integers:
            return self._integers[written]
        found = self._texts.get(str(written)) if is_id(written) else None
        return self._integers.get(parse_integer(written)) if found is None else found
