"""Writes the files of a format from entries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from detlite.apps.prediction_files.writer import FORMATS, ModelInfo

WriteFiles = Callable[..., None]


@pytest.fixture
def write_files(tmp_path: Path) -> WriteFiles:
    """Return a function that writes all files of a format to `tmp_path`."""

    def write(format: str, entries: Sequence[dict[str, Any]], model: ModelInfo) -> None:
        kind = FORMATS.get(format)
        if kind.requires:
            pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[parquet]")
        kind(tmp_path, model).write(entries)

    return write
