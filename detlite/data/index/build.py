"""Open the index of an annotation file, and build it if it does not exist.

The name of an index is a hash of the content of its annotation file. A copied or touched file
needs no new index, and a change is never missed. Reading the whole file at every start would take
long on a slow disk, so a note stores the hash for the size, times and inode of the file.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from detlite.files import cache
from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError
from detlite.files.reading import open_file

from .annotation_index import AnnotationIndex, DamagedIndexError

_BLOCK = 1 << 22  # bytes per read
_logger = logging.getLogger(__name__)


def open_index(file: Path, by_url: bool = False) -> AnnotationIndex:
    """Open the index of an annotation file; build it if there is none for this content.

    If several processes ask for an index, one builds it. If the cache folder cannot be written, the
    index is built in a temporary folder of this process. Invalid annotations are flagged. Raises
    DataError if the file is not valid COCO otherwise, or if there is no space for the index.
    """
    folder = cache.folder()
    if folder is not None:
        try:
            return _cached_index(file, by_url, folder)
        except OSError as error:
            _logger.warning(
                "%s: the index is built in a temporary folder, and again at the next start: %s "
                "(set %s to a folder with space)", file, str(error), cache.VARIABLE,
            )  # fmt: skip
    try:
        return _cached_index(file, by_url, cache.process_folder())
    except OSError as error:
        raise DataError(
            f"{file}: no space for the index, which is about as large as the file ({error}). Set "
            f"{cache.VARIABLE} to a folder with space"
        ) from error


def _cached_index(file: Path, by_url: bool, folder: Path) -> AnnotationIndex:
    """Open or build an index in a folder. Raises OSError if it cannot be written."""
    note_file = folder / f"{cache.key(file.absolute())}.note"
    try:
        stamp = cache.file_stamp(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    note = cache.read_note(note_file)
    known = stamp is not None and isinstance(note, dict) and note.get("stamp") == stamp
    content = str(note["hash"]) if known else content_hash(file)
    path = folder / f"{content}{'-by-url' * by_url}.index"
    index = _open_valid(path, content)
    if index is None:
        folder.mkdir(parents=True, exist_ok=True)
        with cache.exclusive_lock(path.with_suffix(".lock")):
            # Another process may have built it.
            index = _open_valid(path, content, logging.WARNING)
            if index is None:
                from .writing import write_index  # most runs find an index

                cache.delete_unused(folder)
                with atomic_open(path, "wb", unique=True) as stream:
                    write_index(file, by_url, content, stream)
                index = AnnotationIndex(path)
    # The folder may belong to another user.
    with contextlib.suppress(OSError):
        os.utime(path)  # marks it as used
        if stamp is not None and not known:
            cache.write_note(note_file, {"stamp": stamp, "hash": content})
    return index


def _open_valid(path: Path, content: str, level: int = logging.DEBUG) -> AnnotationIndex | None:
    try:
        index = AnnotationIndex(path)
    except FileNotFoundError:
        return None
    except DamagedIndexError as error:
        _logger.log(level, "%s; it is built again", error)
        return None
    return index if index.table.get("hash") == content else None


def content_hash(file: Path) -> str:
    """Return a hash of the content of a file. Raises DataError if it cannot be read."""
    digest = hashlib.blake2b(digest_size=20)
    for _ in read_blocks(file, digest.update):
        pass
    return digest.hexdigest()


def read_blocks(file: Path, observe: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the content of a file after passing it to `observe`. Raises DataError."""
    try:
        with open_file(file) as stream:
            while block := stream.read(_BLOCK):
                observe(block)
                yield block
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
