"""The error for everything that is wrong with a data set on disk."""

from __future__ import annotations

from typing import Any

_LONGEST = 80  # characters of a value in a message


class DataError(ValueError):
    """A data set that cannot be used; the message names file, image or annotation, and remedy."""


class TooLargeError(DataError):
    """A picture with more pixels than are allowed."""


def shown(value: Any) -> str:
    """A value as messages show it: its `repr`, of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
