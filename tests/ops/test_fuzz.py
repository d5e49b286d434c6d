"""A short run of fuzz.py, so that it keeps working; `make sanitize` makes the long one."""

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


def test_capabilities_begin_with_the_plainest():
    assert fuzz.capabilities()[0] == "default"


def test_random_inputs_agree():
    names = fuzz.capabilities()
    for seed in range(1000):
        fuzz.check(seed, names)
