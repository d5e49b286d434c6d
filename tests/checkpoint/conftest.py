"""A small detector for the tests of checkpoints."""

import pytest

from tests.engine.toy import new_toy


@pytest.fixture
def toy():
    """Toy detector with weights from seed 0."""
    return new_toy()
