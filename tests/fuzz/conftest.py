"""How long tests/fuzz searches, and the bounds of an input; `make fuzz MINUTES=60` takes longer."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SECONDS = 10.0
_MIB = 512
_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
for _name, _examples, _same in (("short", 60, True), ("long", 3000, False)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_same,
        database=None,
        deadline=None,
        suppress_health_check=_SLOW,
    )
settings.load_profile(os.environ.get("DETLITE_FUZZ", "short"))


_CLEAR = Path("/proc/self/clear_refs")  # "5" sets the peak, VmHWM, to the memory now


def _memory(name: str) -> int:
    """Return VmRSS, the memory now, or VmHWM, its peak, in KiB (proc(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.fixture
def bounded() -> Callable[[], AbstractContextManager[None]]:
    """`with bounded():` fails where the block takes more than 10 seconds or 512 MiB."""

    @contextmanager
    def bound() -> Iterator[None]:
        # What earlier tests took, and may have kept, hides nothing.
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")
        before, start = _memory("VmRSS"), time.process_time()
        yield
        grown = _memory("VmHWM") - before  # KiB
        seconds = time.process_time() - start
        assert grown < _MIB * 1024, f"takes {grown / 1024:.0f} MiB"
        assert seconds < _SECONDS, f"takes {seconds:.1f} s"

    return bound
