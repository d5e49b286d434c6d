"""Pictures in tar files (shards), each at a place that an index knows."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError
from detlite.data.index.cache import identity

from .fetching import read
from .paths import Location, Remote, address, shared_cache

BLOCK = 512  # bytes of a tar header, which stands right before the data of its file
CHUNK = 1 << 22  # bytes of a shard at a URL that are fetched at once


@dataclass(frozen=True)
class Shard:
    """A tar file.

    Attributes:
        file: where it is.
        size: its bytes.
        version: changes whenever it does.
    """

    file: Location
    size: int
    version: str

    def read(self, start: int, stop: int, cache_bytes: int) -> bytes:
        """Its bytes from `start` to before `stop`.

        From a URL it is read in chunks of CHUNK bytes, which are kept, see `FileCache`; where
        nothing is to be kept, just these bytes are asked for.

        Raises:
            FileNotFoundError, DataError: see `fetching.read`.
            OSError: a local one cannot be read.
        """
        if not isinstance(self.file, Remote):
            with self.file.open("rb") as opened:
                opened.seek(start)
                return opened.read(stop - start)
        cache = shared_cache(cache_bytes)
        stop = min(stop, self.size)
        if cache is None:
            return read(self.file.url, start, stop)
        parts = []
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            first = number * CHUNK
            parts.append(
                cache.read(
                    self._chunk(number),
                    lambda first=first: read(  # type: ignore[misc]
                        self.file.url, first, min(first + CHUNK, self.size)
                    ),
                    max(start - first, 0),
                    stop - first,
                )
            )
        return b"".join(parts)

    def forget(self, start: int, stop: int, cache_bytes: int) -> bool:
        """Drops what is kept of such bytes; whether there was something."""
        cache = shared_cache(cache_bytes) if isinstance(self.file, Remote) else None
        if cache is None:
            return False
        numbers = range(start // CHUNK, -(-stop // CHUNK))
        return sum(cache.forget(self._chunk(number)) for number in numbers) > 0

    def _chunk(self, number: int) -> str:
        return identity(address(self.file), self.version, CHUNK, number)


@dataclass(frozen=True)
class ShardFolder:
    """The shards of a data set, in the place of its folder of pictures.

    Attributes:
        name: what messages call them.
        shards: in the data set's order.
        cache_bytes: how much of those at URLs is kept on the disk.
    """

    name: str
    shards: tuple[Shard, ...]
    cache_bytes: int = 0

    @property
    def address(self) -> str:
        """What tells them from others, and from what they were before."""
        return identity(*((address(one.file), one.version) for one in self.shards))

    def picture(self, image: dict[str, Any]) -> ShardPicture:
        """That of an image entry, which `shard_index` made."""
        place = image["offset"], image["size"], image["header"]
        return ShardPicture(
            self.shards[image["shard"]], image["file_name"], *place, self.cache_bytes
        )


@dataclass(frozen=True)
class ShardPicture:
    """A picture in a shard; messages call it by shard and name.

    Attributes:
        shard: the tar file.
        name: of the picture, `<shard>/<name there>`.
        offset, size: where it lies, in bytes.
        header: CRC-32 of its tar header.
        cache_bytes: see `Shard.read`.
    """

    shard: Shard
    name: str
    offset: int
    size: int
    header: int
    cache_bytes: int

    def __str__(self) -> str:
        member = self.name.removeprefix(f"{self.shard.file.name}/")
        return f"{self.shard.file}: {member}"

    def read_bytes(self) -> bytes:
        """Its file.

        Raises:
            FileNotFoundError: there is no such shard any more.
            DataError: it cannot be read, or has changed since its index was made.
        """
        start, stop = self.offset - BLOCK, self.offset + self.size
        try:
            data = self.shard.read(start, stop, self.cache_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DataError(f"{self}: cannot be read ({error.strerror})") from error
        if len(data) != stop - start or zlib.crc32(data[:BLOCK]) != self.header:
            raise DataError(f"{self}: the shard has changed since its index was made; start again")
        return data[BLOCK:]

    def forget(self) -> bool:
        """Drops copies of it; whether there were any."""
        start, stop = self.offset - BLOCK, self.offset + self.size
        return self.shard.forget(start, stop, self.cache_bytes)


Folder = Path | Remote | ShardFolder


def picture_of(folder: Folder, image: dict[str, Any]) -> Path | Remote | ShardPicture:
    """The picture of an image entry of a data set."""
    if isinstance(folder, ShardFolder):
        return folder.picture(image)
    return folder / image["file_name"]
