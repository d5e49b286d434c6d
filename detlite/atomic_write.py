"""Write files atomically: a reader sees the old file or the whole new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """Yield a temporary path next to `file`, which replaces `file` when the `with` block ends.

    Raises:
        OSError: the file cannot be written. The error names `file`, which is unchanged.
    """
    temporary = file.with_name(file.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, file)
    except OSError as error:
        problem = error.strerror or error  # pyarrow's errors have no strerror
        raise OSError(error.errno, f"cannot be written ({problem})", str(file)) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_open(file: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `file` when the `with` block ends, see `atomic_path`.

    Args:
        file: the file to create or replace.
        mode: "w" for UTF-8 text, "wb" for bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    with atomic_path(file) as temporary, temporary.open(mode, encoding=encoding) as stream:
        yield stream
