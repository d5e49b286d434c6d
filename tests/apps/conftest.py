"""Fixtures for tests of exported files."""

import functools
from collections.abc import Iterator

import pytest

from detlite.apps.export import exported_detector as exported


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Read the program of a file only once, because it takes torch 10 seconds or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported, "_pt2_run", functools.cache(exported._pt2_run))
        yield
