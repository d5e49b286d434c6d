"""Errors of files from elsewhere, and the parts of their messages."""

from typing import Any

_MAX_PROBLEM = 300  # characters
_MAX_LENGTH = 80  # characters of a value in a message


class DataError(ValueError):
    """A dataset cannot be used; the message names the file, image or annotation, and a remedy."""


class TooLargeError(DataError):
    """An image has more pixels than allowed."""


class RemoteError(DataError):
    """A file at a URL cannot be read, so it is unknown if it exists and is valid."""


class RefusedFileError(OSError):
    """A path is no regular file, or larger than such a file may be; `strerror` says which."""


class RefusedPickleError(ValueError):
    """A pickle needs more than arrays and plain containers."""


def short_repr(value: Any) -> str:
    """Return `repr(value)`, abbreviated if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}... ({len(text)} characters)"


def short_reason(error: Exception) -> str:
    """Return the first line of a library's error message, or the error's type if it is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_MAX_PROBLEM]
