"""Files of an evaluation. They are written aside and renamed, so that none is ever half written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .results import Results

_CHUNK = 1000  # results that are text at the same time


def write_results(results: Results, file: Path) -> None:
    """Writes COCO results, which pycocotools' `loadRes` reads.

    Raises:
        OSError: as when the disk is full; it names the file, which is as it was before.
    """
    with written_aside(file) as stream:
        for first in range(0, max(len(results), 1), _CHUNK):
            text = json.dumps(list(results.rows(first, first + _CHUNK)))
            stream.write((", " if first else "[") + text[1:-1])
        stream.write("]")


@contextmanager
def path_aside(file: Path) -> Iterator[Path]:
    """A path beside `file`; what is written there takes its place after the `with` block.

    Raises:
        OSError: it names `file`, which is as it was before.
    """
    temporary = file.with_name(file.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, file)
    except OSError as error:
        problem = error.strerror or error  # pyarrow's errors have but a text
        raise OSError(error.errno, f"cannot be written ({problem})", str(file)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def written_aside(file: Path) -> Iterator[TextIO]:
    """Opens a path beside `file`, see `path_aside`."""
    with path_aside(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
        yield stream
