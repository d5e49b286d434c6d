"""FBNet's body and heads, registered by being imported: when a config names one (`Registry`)."""

from . import fbnet as parts

__all__ = ["parts"]
