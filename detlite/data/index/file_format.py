"""The file that an index is kept in: texts end to end, then arrays, then a table of these."""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detlite.data.errors import DataError

# Raise the number with any change of what indexes hold or of what is checked for them.
_MAGIC = b"detlite index 2\n"
_HEAD = struct.Struct("<16sQQI4x")  # magic, place and length of the table, its CRC-32


class DamagedIndexError(ValueError):
    """A file that is no index, or one that was cut off or is of another version."""


class IndexWriter:
    """Writes an index into an empty file, which is none before `finish`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._arrays: dict[str, tuple[str, list[int], int]] = {}
        self.place = file.write(bytes(_HEAD.size))

    def write(self, data: bytes) -> None:
        """Appends to what was written; `place` is where it ends."""
        self._file.write(data)
        self.place += len(data)

    def reader(self) -> IndexFile:
        """What was written so far; it has no arrays."""
        self._file.flush()
        return IndexFile(Path(self._file.name), {})

    def array(self, name: str, values: np.ndarray) -> None:
        """Appends an array."""
        self._arrays[name] = values.dtype.str, list(values.shape), self.place
        self.write(values.tobytes())

    def finish(self, **table: Any) -> None:
        """Appends the table, with what else is to be in it, and waits until all is on the disk."""
        text = json.dumps({**table, "arrays": self._arrays}).encode()
        head = _HEAD.pack(_MAGIC, self.place, len(text), zlib.crc32(text))
        self._file.write(text)
        self._file.seek(0)
        self._file.write(head)
        self._file.flush()
        os.fsync(self._file.fileno())


class IndexFile:
    """An index that is open for reading.

    It is read at given places, not mapped: processes share its pages in either case, but those of
    a mapping count as memory of each process that has touched them, and a disk that fails would
    end a process by SIGBUS, where reading raises an error.

    Attributes:
        path: the file.
        table: what `IndexWriter.finish` was given.
    """

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self.path = path
        self.table = table
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)

    @classmethod
    def open(cls, path: Path) -> IndexFile:
        """Raises DamagedIndexError, or OSError."""
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or not head.startswith(_MAGIC):
                raise DamagedIndexError(f"{path}: no index of this version")
            _, place, length, crc = _HEAD.unpack(head)
            if os.fstat(file.fileno()).st_size != place + length:
                raise DamagedIndexError(f"{path}: was cut off")
            file.seek(place)
            text = file.read(length)
        if zlib.crc32(text) != crc:
            raise DamagedIndexError(f"{path}: its table is damaged")
        return cls(path, json.loads(text))

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexFile.open, (self.path,)

    def read(self, start: int, stop: int) -> bytes:
        """What was written from place `start` on, up to `stop`.

        Raises:
            DataError: the file has become shorter, or cannot be read any more.
        """
        parts = []
        while start < stop:
            # One call gives 2 GB at most.
            try:
                part = os.pread(self._file.fileno(), stop - start, start)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
            if not part:
                raise DataError(f"{self.path}: the index was cut off while in use; start again")
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def array(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """An array, or its rows from `start` to before `stop`; it cannot be written to."""
        kind, shape, place = self.table["arrays"][name]
        stop = shape[0] if stop is None else stop
        row = np.dtype(kind).itemsize * math.prod(shape[1:])
        data = self.read(place + start * row, place + stop * row)
        return np.frombuffer(data, kind).reshape(stop - start, *shape[1:])

    def texts(self, spans: np.ndarray) -> list[bytes]:
        """The bytes of each span, int64 [N, 2] of (start, stop)."""
        return [self.read(start, stop) for start, stop in spans.tolist()]
