"""Files of results to which rows are appended while a run lasts."""

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from detlite.files.atomic_write import open_to_append

PART = ".part"  # follows the name of a file until it is complete


class RowFile:
    """A file of rows, a JSON list or CSV, that survive the end of the process.

    Call `restart` before the other methods.

    Attributes:
        stream: the open file.
        size: its size in bytes.
    """

    def __init__(self, file: Path, begin: str) -> None:
        """Open the file that an earlier process left, or a new one; `begin` precedes the rows."""
        self._file, self._begin = file, begin.encode()
        self._part, self._is_json = file.with_name(file.name + PART), file.suffix == ".json"
        if file.exists():  # of a process that ended while it completed the results
            os.replace(file, self._part)
        self.stream = open_to_append(self._part)
        self.size = self.stream.tell()

    def restart(self, size: int) -> None:
        """Remove what follows the first `size` bytes."""
        self.stream.truncate(size)
        self.size = size or self.stream.write(self._begin)

    def append(self, *rows: str) -> None:
        """Append rows, with commas between them in a list."""
        for row in rows:
            comma = b",\n" * (self._is_json and self.size > len(self._begin))
            self.size += self.stream.write(comma + row.encode())
        self.stream.flush()

    def complete(self, more: Iterable[str] = ()) -> None:
        """End the list, append more text, and give the file its name."""
        self.stream.writelines(text.encode() for text in chain(["]" * self._is_json], more))
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        os.replace(self._part, self._file)
