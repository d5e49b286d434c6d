"""Images in tar files (shards), at byte positions from an index."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from detlite.data.images.sources import ImageArchive
from detlite.data.locations import Location, location_id
from detlite.data.remote.filesystem import read
from detlite.data.remote.remote_path import RemotePath
from detlite.files import cache
from detlite.files.errors import DataError
from detlite.files.file_cache import file_cache
from detlite.files.reading import open_file

BLOCK = 512  # bytes of a tar header; each file's header precedes its data
CHUNK = 1 << 22  # bytes of a remote shard that one request reads


@dataclass(frozen=True)
class Shard:
    """A tar file; `version` is a text that changes with its content."""

    file: Location
    size: int
    version: str

    def read(self, start: int, stop: int, cache_bytes: int) -> bytes:
        """Return the bytes `start` to `stop - 1`. Raises the errors of `filesystem.read`.

        A remote shard is read and cached in chunks of CHUNK bytes. If caching is off, only the
        requested bytes are read.
        """
        if not isinstance(self.file, RemotePath):
            with open_file(self.file) as stream:
                stream.seek(start)
                return stream.read(stop - start)
        files = file_cache("remote", cache_bytes)
        url, stop = self.file.url, min(stop, self.size)
        if files is None:
            return read(url, start, stop)
        parts = []
        for number in range(start // CHUNK, -(-stop // CHUNK)):
            first = number * CHUNK

            def fetch(first: int = first) -> bytes:
                return read(url, first, min(first + CHUNK, self.size))

            key = self._chunk_key(number)
            parts.append(files.read(key, fetch, max(start - first, 0), stop - first))
        return b"".join(parts)

    def forget(self, start: int, stop: int, cache_bytes: int) -> bool:
        """Delete cached chunks of a range of bytes, see `StoredImage.forget`."""
        files = file_cache("remote", cache_bytes) if isinstance(self.file, RemotePath) else None
        if files is None:
            return False
        numbers = range(start // CHUNK, -(-stop // CHUNK))
        return sum(files.forget(self._chunk_key(number)) for number in numbers) > 0

    def _chunk_key(self, number: int) -> str:
        return cache.key(location_id(self.file), self.version, CHUNK, number)


@dataclass(frozen=True)
class ShardFolder(ImageArchive):
    """The shards of a dataset."""

    shards: tuple[Shard, ...]

    @property
    def id(self) -> str:
        return cache.key(*((location_id(shard.file), shard.version) for shard in self.shards))

    def image(self, entry: dict[str, Any]) -> ShardImage:
        position = entry["offset"], entry["size"], entry["header"]
        shard = self.shards[entry["shard"]]
        return ShardImage(shard, entry["file_name"], *position, self.cache_bytes)


@dataclass(frozen=True)
class ShardImage:
    """An image file in a shard, named `<shard>/<member>`.

    `offset` is its position in the shard in bytes, and `header` the CRC-32 of its tar header.
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
        """Return the content. Raises FileNotFoundError, or DataError, also if the shard changed."""
        start, stop = self.offset - BLOCK, self.offset + self.size
        try:
            data = self.shard.read(start, stop, self.cache_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DataError(f"{self}: cannot be read ({error.strerror})") from error
        if len(data) != stop - start or zlib.crc32(data[:BLOCK]) != self.header:
            raise DataError(f"{self}: the shard has changed since it was indexed; start again")
        return data[BLOCK:]

    def forget(self) -> bool:
        stop = self.offset + self.size
        return self.shard.forget(self.offset - BLOCK, stop, self.cache_bytes)
