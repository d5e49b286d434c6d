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


@pytest.mark.parametrize(
    "seeds",
    [range(150), pytest.param(range(150, 1000), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_instruction_sets_agree_on_random_inputs(seeds):
    names = fuzz.capabilities()
    for seed in seeds:
        fuzz.check(seed, names)
