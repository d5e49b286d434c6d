"""Open files from elsewhere, which may be of any type and size."""

import codecs
import errno
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from .errors import RefusedFileError


def check_regular(path: Path, max_bytes: int | None = None) -> None:
    """Refuse a path that may block or never end, such as a FIFO or a device.

    Raises:
        RefusedFileError: the path is no regular file, or is larger than `max_bytes`.
        OSError: it does not exist or is a folder.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise RefusedFileError(errno.EINVAL, "not a regular file", str(path))
    if max_bytes is not None and status.st_size > max_bytes:
        size = f"{status.st_size} bytes, more than the {max_bytes} that such a file may have"
        raise RefusedFileError(errno.EFBIG, size, str(path))


def open_file(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file to read its bytes. Raises OSError, see `check_regular`."""
    check_regular(path, max_bytes)
    return path.open("rb")


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError, see `check_regular`."""
    with open_file(path, max_bytes) as stream:
        # Not `max_bytes`: Python allocates the number of bytes that it is asked for.
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file in UTF-8, or in UTF-16 as PowerShell writes it.

    Raises:
        OSError: see `check_regular`.
        UnicodeDecodeError: the file has another encoding.
    """
    content = read_file(path, max_bytes)
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig")


def open_stored_zip(path: Path) -> zipfile.ZipFile:
    """Open an archive whose members are not compressed, as torch and detlite write them.

    Raises:
        ValueError: its members state more bytes than it has, so it could fill the memory.
        BadZipFile: it is damaged.
    """
    archive = zipfile.ZipFile(path)
    size = sum(member.file_size for member in archive.infolist())
    if size > path.stat().st_size:
        archive.close()
        raise ValueError(f"its parts have {size} bytes, more than the file: they are compressed")
    return archive


def explain_not_downloaded(data: bytes) -> str:
    """Return what to do about a file that is a git-lfs pointer or a web page, or ""."""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer: fetch the file itself with `git lfs pull`"
    if start.startswith((b"<!doctype html", b"<html")):
        return "it is a web page: download the file again, from its direct URL"
    return ""
