"""Machines for which configs are chosen."""

import pytest

from detlite.apps.doctor.machine import Resources


@pytest.fixture
def cpu() -> Resources:
    """Machine with two cores and no installed weights."""
    return Resources(2, 16_000_000_000, "", 0, "bfloat16", pretrained=False)


@pytest.fixture
def gpu() -> Resources:
    """Machine with a large GPU and installed weights."""
    return Resources(16, 128_000_000_000, "A GPU", 80_000_000_000, "bfloat16", pretrained=True)
