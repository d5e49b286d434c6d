"""A server whose faults tests choose, and attempts without waits between them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from detlite.files import retry
from tests.data.servers import FileServer, serving


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits between attempts without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", waited.append)
    return waited


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FileServer]:
    """Serve tmp_path."""
    with serving(tmp_path) as server:
        yield server
