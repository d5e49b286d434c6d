"""Errors of datasets and files."""

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, NoReturn

_MAX_PROBLEM = 300  # characters
_MAX_LENGTH = 80  # characters of a value in a message


class DataError(ValueError):
    """A dataset cannot be used; the message names the file, image or annotation, and a remedy."""


class TooLargeError(DataError):
    """An image has more pixels than allowed."""


class RemoteError(DataError):
    """A file at a URL cannot be read, so it is unknown if it exists and is valid."""


def short_repr(value: Any) -> str:
    """Return `repr(value)`, abbreviated if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}... ({len(text)} characters)"


def short_reason(error: Exception) -> str:
    """Return the first line of a library's error message, or the error's type if it is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_MAX_PROBLEM]


def refuse(problems: Sequence[str], count: int, file: object) -> NoReturn:
    """Raise a DataError for the first of `count` problems of a file."""
    more = f" (the first of {count} problems)" if count > 1 else ""
    raise DataError(
        f"{file}: {shorten(problems[0], _MAX_PROBLEM)}{more}. Fix the file, or skip such entries "
        "with DATASETS.ON_BAD_ANNOTATION: skip"
    )
