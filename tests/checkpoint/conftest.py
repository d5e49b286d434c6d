"""A small detector for the tests of checkpoints, and files of weights."""

import pytest

from tests.engine.toy import new_toy
from tests.weight_files import built, saved

__all__ = ["built", "saved", "toy"]


@pytest.fixture
def toy():
    """Toy detector with weights from seed 0."""
    return new_toy()
