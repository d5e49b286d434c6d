"""A file that grows by a line for each picture, and is gone on with after any kind of end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Journal:
    """A journal that is open; `done` is how many pictures it held then."""

    done: int
    _write: Callable[[str], object]

    def add(self, line: str) -> None:
        """Notes the next picture, as JSON in one line."""
        self._write(line + "\n")


@contextmanager
def open_journal(file: Path) -> Iterator[Journal]:
    """Opens a journal after its last whole line, or begins it."""
    done = _whole_lines(file)
    # Each line is handed to the system by itself, so that it outlives the process.
    with file.open("a", encoding="utf-8", buffering=1) as stream:
        yield Journal(done, stream.write)


def read_journal(file: Path) -> Iterator[dict[str, Any]]:
    """What was noted of each picture."""
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def _whole_lines(file: Path) -> int:
    """How many pictures a journal holds; what follows its last whole line is cut off."""
    count = end = 0
    if file.exists():
        with file.open("rb") as stream:
            for line in stream:
                try:
                    json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                count, end = count + 1, end + len(line)
        os.truncate(file, end)
    return count
