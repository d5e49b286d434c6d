"""Value checks of the schema: each returns None for a valid value, otherwise what is valid."""

import math
from collections.abc import Callable
from typing import Any

from detlite.conventions import CONVENTIONS

Check = Callable[[Any], "str | None"]


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


def below_one(value: Any) -> str | None:
    """Accept a number in [0, 1)."""
    return None if 0 <= value < 1 else "at least 0, below 1"


positive = above(0)
run_length = above(0, 1e9)  # a larger one is a mistake and could overflow
not_negative = in_range(0)
above_up_to_one = above(0, 1)
fraction = in_range(0, 1)


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


def scale_range(value: Any) -> str | None:
    """Accept two positive numbers in increasing order, or none."""
    expected = each(positive, 2, empty=True)(value) if value else None
    if expected is None and (not value or value[0] <= value[1]):
        return None
    return "two positive numbers in order, such as (0.1, 2.0), or ()"


def value_range(value: Any) -> str | None:
    """Accept pairs of numbers in increasing order, one after the other, or none."""
    pairs = list(zip(value[::2], value[1::2], strict=False))
    if len(value) % 2 == 0 and all(low < high for low, high in pairs):
        return None
    return "pairs of numbers in order, such as (0, 4095), or ()"


def strings(value: Any) -> str | None:
    """Accept a sequence of strings."""
    return None if all(isinstance(item, str) for item in value) else "a sequence of strings"


def name_pairs(value: Any) -> str | None:
    """Accept a sequence of pairs of strings."""
    pairs = all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value)
    is_valid = pairs and all(isinstance(name, str) for pair in value for name in pair)
    return None if is_valid else "a list of pairs of names such as [[left_eye, right_eye]]"


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


def catalog(value: Any) -> str | None:
    """Accept a list of data set entries, each a mapping with a string `name`."""
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            return "a list of mappings such as {name: my_train, annotations: a.json, images: dir}"
    return None


def expected_results(value: Any) -> str | None:
    """Accept a list of (kind, metric, (mean, standard deviation))."""
    for row in value:
        try:
            kind, metric, (mean, deviation) = row
            is_valid = isinstance(kind, str) and isinstance(metric, str) and mean >= 0 <= deviation
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid:
            return "a list of rows such as [bbox, AP, [0.377, 0.002]]"
    return None
