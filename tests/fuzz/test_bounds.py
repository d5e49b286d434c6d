"""Tests of the limits and of the changed inputs themselves."""

import numpy as np
import pytest
from hypothesis import given

from detlite import ConfigError
from detlite.apps.allocator import keep_freed_memory
from tests.fuzz.inputs import mutated, mutated_bytes


@pytest.mark.slow
def test_memory_is_bounded(bounded):
    keep_freed_memory()  # the commands do the same
    np.ones(2**30 // 8)  # an earlier, higher peak
    with pytest.raises(AssertionError, match="MiB"), bounded():
        np.ones(600 * 2**20 // 8)


@pytest.mark.parametrize("message", ["", "two\nlines", "x" * 5000, "late"])
def test_time_and_messages_are_bounded(bounded, monkeypatch, message):
    clock = iter([0.0, 11.0 if message == "late" else 1.0])
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    with pytest.raises(AssertionError), bounded():
        raise ConfigError(message)


@given(content=mutated({"a": [1, 2, {"b": "c"}]}), data=mutated_bytes(b"valid"))
def record(seen, content, data):
    seen.append((repr(content), data))


def test_inputs_change():
    seen = []
    record(seen)
    assert all(len({*values}) > 10 for values in zip(*seen, strict=True))
