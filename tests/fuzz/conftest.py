"""Number of examples per test, and limits of time and memory; `make fuzz` draws more examples."""

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from detlite import ConfigError
from detlite.errors import CheckpointError
from detlite.files.errors import DataError

_SECONDS, _MIB = 10.0, 512
_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
for _name, _examples, _repeatable in (("short", 60, True), ("long", 3000, False)):
    settings.register_profile(
        _name, max_examples=_examples, derandomize=_repeatable, database=None, deadline=None,
        suppress_health_check=_SLOW,
    )  # fmt: skip
settings.load_profile(os.environ.get("DETLITE_FUZZ", "short"))

# Writing "5" resets the peak of memory, VmHWM (proc(5)).
_CLEAR = Path("/proc/self/clear_refs")
_numbers = itertools.count()


def _memory(name: str) -> int:
    """Return the resident memory (VmRSS) or its peak (VmHWM) in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.fixture
def bounded() -> Callable[..., AbstractContextManager[None]]:
    """`with bounded():` fails if the block takes more than 10 seconds or 512 MiB.

    It may end in an error of detlite, whose message must be one line of limited length.
    """

    @contextmanager
    def bound(max_length: int = 5000) -> Iterator[None]:
        # Memory that was freed but kept by the allocator would hide new allocations.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        before, start = _memory("VmRSS"), time.process_time()
        try:
            yield
        except (CheckpointError, ConfigError, DataError) as error:
            message = str(error)
            assert message
            assert "\n" not in message, message
            assert len(message) < max_length, f"{len(message)} characters: {message[:200]}"
        grown = _memory("VmHWM") - before  # KiB
        seconds = time.process_time() - start
        assert grown < _MIB * 1024, f"takes {grown / 1024:.0f} MiB"
        assert seconds < _SECONDS, f"takes {seconds:.1f} s"

    return bound


@pytest.fixture
def check(tmp_path: Path, bounded: Any) -> Callable[..., None]:
    """Return `check(read, data, suffix)`: a bounded call of `read` with a new file."""

    def run(read: Callable[[Path], Any], data: bytes, suffix: str = "", limit: int = 5000) -> None:
        # A new name each time, because the index of a file is cached.
        file = tmp_path / f"{next(_numbers)}{suffix}"
        file.write_bytes(data)
        with bounded(limit):
            read(file)
        file.unlink()

    return run
