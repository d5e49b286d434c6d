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


def test_time_and_messages_are_bounded(bounded, monkeypatch):
    for message in ("", "two\nlines", "x" * 5000):
        with pytest.raises(AssertionError), bounded():
            raise ConfigError(message)
    clock = iter([0.0, 11.0])
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    with pytest.raises(AssertionError, match=r"takes 11\.0 s"), bounded():
        raise ConfigError("one line")


def test_inputs_change():
    valid, seen = {"a": [1, 2, {"b": "c"}]}, []

    @given(mutated(valid), mutated_bytes(b"valid"))
    def record(content, data):
        seen.append((repr(content), data))

    record()
    assert all(len({*values}) > 10 for values in zip(*seen, strict=True))
    assert valid == {"a": [1, 2, {"b": "c"}]}
