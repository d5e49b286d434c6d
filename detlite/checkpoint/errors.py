"""Errors about checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is truncated or has changed since it was written."""
