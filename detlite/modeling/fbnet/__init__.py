"""FBNet's body and heads, registered by being imported: when a config names one (`Registry`)."""

from . import body, heads

__all__ = ["body", "heads"]
