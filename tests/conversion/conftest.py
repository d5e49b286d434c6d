"""Fixtures of tests of conversion."""

from tests.weight_files import built, saved

__all__ = ["built", "saved"]
