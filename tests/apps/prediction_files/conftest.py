"""Writes the files of a format from entries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from detlite.apps.prediction_files.writer import FORMATS, ModelInfo, PredictionWriter

WriteFiles = Callable[..., PredictionWriter]


@pytest.fixture
def write_files(tmp_path: Path) -> WriteFiles:
    """Return a function that writes all files of a format to `tmp_path`."""

    def write(format: str, entries: Sequence[dict[str, Any]], model: ModelInfo) -> PredictionWriter:
        kind = FORMATS.get(format)
        if kind.requires:
            pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[parquet]")
        writer = kind(tmp_path, model)
        for entry in entries:
            writer.write(entry)
        writer.flush()
        writer.finish(entry["image"] for entry in entries)
        writer.close()
        kind.publish(tmp_path)
        return writer

    return write
