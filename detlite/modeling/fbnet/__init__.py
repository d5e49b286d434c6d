"""FBNet's body and heads, registered by being imported: when a config names one (`Registry`)."""

from . import parts

__all__ = ["parts"]
