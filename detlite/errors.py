"""Errors that users can fix: their messages say what is wrong, where, and what to do.

`detlite.files.errors` has those about datasets and other files.
"""


def one_line(message: object) -> str:
    """Escape line breaks and control characters, which names in a message can contain."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message))


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
