"""Errors that users can fix: their messages say what is wrong, where, and what to do.

`detlite.files.errors` has those about datasets and other files.
"""

import unicodedata

# Unicode's categories of control characters, damaged characters and line breaks, and the marks that
# change the direction of the text after them.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def one_line(message: object) -> str:
    """Make a text from elsewhere printable: escape line breaks and control characters in it."""
    return "".join(
        ascii(c)[1:-1]
        if unicodedata.category(c) in _UNPRINTABLE or unicodedata.bidirectional(c) in _DIRECTIONS
        else c
        for c in str(message)
    )


class ConfigError(ValueError):
    """A config key or value is invalid; the message says where and what to do."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is truncated or has changed since it was written."""


class LoaderProcessError(RuntimeError):
    """A loader process died, or cannot pass a batch to the main process."""


class NonFiniteLossError(RuntimeError):
    """A loss is infinite or NaN. No checkpoint is saved after it."""
