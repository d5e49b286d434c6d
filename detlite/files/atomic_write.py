"""Write files atomically: a reader sees the old file or the whole new one, never a part."""

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from .errors import DataError

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # missing on Windows


@contextmanager
def atomic_path(file: Path, unique: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `file`, which replaces `file` when the `with` block ends.

    Args:
        file: the file to create or replace.
        unique: give the temporary file a random name, so that several processes can write the same
            file. A killed process leaves it behind.

    Raises:
        OSError: the file cannot be written. The error names `file`, which is unchanged.
    """
    unique_name = f".{file.name}-{secrets.token_hex(8)}.tmp"
    temporary = file.with_name(unique_name if unique else file.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link there would lead to another file
        yield temporary
        # Without fsync, a power failure may leave the new name with incomplete content.
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        problem = error.strerror or error  # pyarrow's errors have no strerror
        raise OSError(error.errno, f"cannot be written ({problem})", str(file)) from error
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder in an output folder, unless it exists; OSError if it is a link."""
    _check_no_link(folder)
    folder.mkdir(parents=True, exist_ok=True)


def open_to_append(file: Path) -> BinaryIO:
    """Open a file in an output folder to append to it; OSError if it is a link."""
    _check_no_link(file)
    return open(file, "ab+", opener=lambda path, flags: os.open(path, flags | _NO_LINK, 0o666))


def _check_no_link(path: Path) -> None:
    """Raise an OSError if a path is a link, with which its creator could lead to any other file."""
    if path.is_symlink():
        problem = "is a symbolic link: remove it, or choose another folder"
        raise OSError(errno.ELOOP, problem, str(path))


@contextmanager
def atomic_open(file: Path, mode: str = "w", unique: bool = False) -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `file` when the `with` block ends, see `atomic_path`.

    Args:
        file: the file to create or replace.
        mode: "w" for UTF-8 text, "wb" for bytes.
        unique: see `atomic_path`.
    """
    encoding = None if "b" in mode else "utf-8"
    with atomic_path(file, unique) as temporary, temporary.open(mode, encoding=encoding) as stream:
        yield stream


def write_json(file: Path, content: Any) -> None:
    """Write JSON like `write_file`."""
    write_file(file, json.dumps(content).encode())


def write_file(file: Path, data: bytes) -> None:
    """Write a file atomically, and create its folder. Raises DataError.

    The next call replaces what a killed process left of it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(file, "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error})") from error
