"""A short run of fuzz.py. `make sanitize` runs it for longer."""

import os
from collections.abc import Iterator

import pytest

from tests.ops import fuzz


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    before = os.environ.get(fuzz.VARIABLE)
    yield
    os.environ.pop(fuzz.VARIABLE, None)
    if before is not None:
        os.environ[fuzz.VARIABLE] = before


def test_capabilities_begin_with_the_default():
    assert fuzz.capabilities()[0] == "default"


def test_instruction_sets_agree_on_random_inputs():
    names = fuzz.capabilities()
    for seed in range(1000):
        fuzz.check(seed, names)
