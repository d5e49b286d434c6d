"""Fixtures of tests of models."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.modeling.family import make_batch


@pytest.fixture(name="make_batch")
def make_batch_fixture() -> Callable[..., Any]:
    """Return the function `make_batch(*counts)` of `tests.modeling.family`."""
    return make_batch
