"""Errors about inference."""


class NoGraphError(ValueError):
    """The code of a module depends on values or sizes, so its graph cannot be traced."""
