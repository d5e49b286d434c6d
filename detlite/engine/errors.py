"""Errors of a training run."""


class NonFiniteLossError(RuntimeError):
    """A loss is infinite or NaN. No checkpoint is saved after it."""
