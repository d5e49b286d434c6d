"""The record of a config key, and checks of values.

A check returns None for a valid value, otherwise what is valid.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from detlite.conventions import CONVENTIONS

Check = Callable[[Any], "str | None"]


@dataclass(frozen=True, eq=False)
class Key:
    """A config key.

    Attributes:
        name: the full name, "SOLVER.BASE_LR".
        default: the default value; its type is the type of the key.
        optional_type: the type of a key whose default is None.
        origin: for a key of maskrcnn-benchmark that only restates another, that key.
        doc: the description, for docs/config.md and error messages.
    """

    name: str
    default: Any
    check: Check | None = None
    optional_type: type | None = None
    origin: str = ""
    doc: str = ""


def expect(expected: str, is_valid: Callable[[Any], bool]) -> Check:
    """Accept values for which `is_valid` returns True without an error."""

    def check(value: Any) -> str | None:
        try:
            return None if is_valid(value) else expected
        except (TypeError, ValueError, KeyError):
            return expected

    return check


def one_of(*choices: Any) -> Check:
    """Accept one of `choices`."""
    return lambda value: None if value in choices else f"one of {', '.join(map(repr, choices))}"


def in_range(low: float, high: float = math.inf) -> Check:
    """Accept a finite number in [low, high]."""
    expected = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    return _finite(lambda value: None if low <= value <= high else expected)


def above(low: float, high: float = math.inf) -> Check:
    """Accept a finite number in (low, high]."""
    expected = f"greater than {low:g}" + (f", at most {high:g}" if high < math.inf else "")
    return _finite(lambda value: None if low < value <= high else expected)


def _finite(check: Check) -> Check:
    return lambda value: check(value) or ("finite" if value == math.inf else None)


def each(check: Check, length: int | None = None, empty: bool = False) -> Check:
    """Accept a sequence of `length` (None: any number of) elements that pass `check`."""

    def checked(value: Any) -> str | None:
        if length is not None and len(value) != length:
            return f"{length} values"
        if not empty and len(value) == 0:
            return "at least one value"
        for item in value:
            try:
                expected = check(item)
            except TypeError:
                return f"a sequence of numbers, not {item!r}"
            if expected:
                return f"values {expected}"
        return None

    return checked


def convention_fields(value: Any) -> str | None:
    """Accept fields of a convention, such as ("resize=floor",)."""
    if expected := strings(value):
        return expected
    try:
        CONVENTIONS["detlite"].override(value)
    except ValueError as error:
        return f"field=value: {error}"
    return None


def anchor_sizes(value: Any) -> str | None:
    """Accept positive sizes, or one tuple of positive sizes for each level."""
    nested = [item if isinstance(item, (tuple, list)) else (item,) for item in value]
    error = each(each(positive))(nested)
    return "positive sizes, or a tuple of positive sizes per level" if error else None


positive = above(0)
duration = above(0, 1e9)  # a larger one is a mistake and could overflow
not_negative = in_range(0)
above_up_to_one = above(0, 1)
fraction = in_range(0, 1)
below_one = expect("at least 0, below 1", lambda value: 0 <= value < 1)
strings = expect("a sequence of strings", lambda value: all(isinstance(i, str) for i in value))
steps = expect(
    "increasing iterations, or increasing fractions of the run below 1",
    lambda value: (
        each(not_negative, empty=True)(value) is None
        and all(low < high for low, high in pairwise(value))
        and (not value or value[-1] < 1 or value[0] == 0 or value[0] >= 1)
    ),
)
value_range = expect(
    "pairs of numbers in order, such as (0, 4095), or ()",
    lambda value: all(
        math.isfinite(low) and low < high < math.inf
        for low, high in zip(value[::2], value[1::2], strict=True)
    ),
)
name_pairs = expect(
    "a list of pairs of names such as [[left_eye, right_eye]]",
    lambda value: all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and strings(pair) is None
        for pair in value
    ),
)
catalog = expect(
    "a list of mappings such as {name: my_train, annotations: a.json, images: dir}",
    lambda value: all(isinstance(entry["name"], str) for entry in value),
)
expected_results = expect(
    "a list of rows such as [bbox, AP, [0.377, 0.002]]",
    lambda value: all(
        strings((kind, metric)) is None and mean >= 0 <= deviation
        for kind, metric, (mean, deviation) in value
    ),
)
norm = one_of("FrozenBN", "BN", "SyncBN", "GN", "LN")
optional_norm = one_of("", "FrozenBN", "BN", "SyncBN", "GN", "LN")
