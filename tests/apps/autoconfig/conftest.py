"""Machines for which configs are chosen."""

import pytest

from detlite.apps.doctor.machine import Resources

from .builders import CPU, GPU


@pytest.fixture
def cpu() -> Resources:
    """Machine with two cores and no installed weights."""
    return CPU


@pytest.fixture
def gpu() -> Resources:
    """Machine with a large GPU and installed weights."""
    return GPU
