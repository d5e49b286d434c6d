"""Errors of images, annotation files and loader processes; see also `detlite.files.errors`."""

from collections.abc import Sequence
from textwrap import shorten
from typing import NoReturn

from detlite.files.errors import DataError

_MAX_PROBLEM = 300  # characters


class TooLargeError(DataError):
    """An image has more pixels than allowed."""


class DamagedIndexError(ValueError):
    """A file is not an index, is truncated, or has another version."""


class NotAnObjectError(ValueError):
    """The JSON document is not an object; the message is the name of its type."""


class LoaderProcessError(RuntimeError):
    """A loader process died, or cannot pass a batch to the main process."""


def refuse(problems: Sequence[str], count: int, file: object) -> NoReturn:
    """Raise a DataError for the first of `count` problems of a file."""
    more = f" (the first of {count} problems)" if count > 1 else ""
    raise DataError(
        f"{file}: {shorten(problems[0], _MAX_PROBLEM)}{more}. Fix the file, or skip such entries "
        "with --skip-bad, or with DATASETS.ON_BAD_ANNOTATION: skip in a config"
    )
