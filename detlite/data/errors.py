"""Errors of data sets and files."""

from typing import Any

_MAX_LENGTH = 80  # characters of a value in a message


class DataError(ValueError):
    """A data set cannot be used; the message names the file, image or annotation, and a remedy."""


class TooLargeError(DataError):
    """An image has more pixels than allowed."""


class RemoteError(DataError):
    """A file at a URL cannot be read, so it is unknown if it exists and is valid."""


def short_repr(value: Any) -> str:
    """Return `repr(value)`, abbreviated if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}... ({len(text)} characters)"
