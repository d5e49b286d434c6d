"""What the tests of exported files share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from detlite.apps.export import exported_detector as exported


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """The program of a file is read, which takes torch 10 s and more, only the first time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported, "_pt2_run", functools.cache(exported._pt2_run))
        yield
