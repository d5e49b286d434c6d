"""Hooks: code that the trainer calls at fixed points of its loop."""

from .base import HOOKS, Hook

__all__ = ["HOOKS", "Hook"]
