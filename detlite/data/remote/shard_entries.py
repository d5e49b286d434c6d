"""The entries of a tar file in WebDataset's form.

An entry is a picture and a json file of one name but for the ending, one right after the other:
`a/0001.jpg`, `a/0001.json`. Its json has `width`, `height`, `annotations` in COCO's form without
`image_id`, and perhaps `image_id`. Other files are passed over.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO, cast

from detlite.data.errors import DataError, short_repr
from detlite.data.index.annotation_checks import is_long

from .paths import Remote
from .shards import BLOCK, CHUNK, Shard

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff")


def read_entries(shard: Shard) -> Iterator[dict[str, Any]]:
    """The entries of a shard, in its order.

    Yields:
        `json`, `name`, and of the picture `offset`, `size` and `header`, see `ShardPicture`; or
        `problem`: what is wrong with an entry, or with the whole.

    Raises:
        DataError: it cannot be read; what is in it is not known then.
    """
    try:
        with _open(shard) as source, tarfile.open(fileobj=source, mode="r:") as tar:
            for key, members in groupby(_members(tar), lambda member: _key(member.name)[0]):
                yield from _entry(key, list(members), source)
            source.seek(tar.offset)
            if source.read(BLOCK) != bytes(BLOCK):
                yield {"problem": f"is cut off or damaged from byte {tar.offset} on"}
    except OSError as error:
        raise DataError(f"{shard.file}: cannot be read ({error.strerror or error})") from error
    except (tarfile.TarError, EOFError) as error:
        yield {"problem": f"is cut off or damaged ({error})"}


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # which it would keep
        if member.isreg():
            yield member


def _key(name: str) -> tuple[str, str]:
    """The name up to the first dot of its last part, which entries go by, and the ending."""
    folder, mark, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{mark}{stem}", ending.lower()


def _entry(
    key: str, members: Sequence[tarfile.TarInfo], source: BinaryIO
) -> Iterator[dict[str, Any]]:
    """What the files of one key are, if they are an entry at all."""
    by_ending = {_key(member.name)[1]: member for member in members}
    pictures = [by_ending[ending] for ending in PICTURES if ending in by_ending]
    described = by_ending.get("json")
    if described is None and not pictures:
        return
    if described is None or len(pictures) != 1:
        missing = "no json" if described is None else f"{len(pictures)} pictures"
        yield {"problem": f"{short_repr(key)} has {missing}"}
        return
    source.seek(described.offset_data)
    text = source.read(described.size)
    if len(text) < described.size:
        return  # the whole is cut off, which is told at its end
    try:
        sample = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield {"problem": f"{short_repr(key)} is not JSON: {error}"}
        return
    problem = _sample_problem(sample)
    if problem:
        yield {"problem": f"{short_repr(key)} {problem}"}
        return
    (picture,) = pictures
    source.seek(picture.offset_data - BLOCK)
    header = source.read(BLOCK)
    known = {"offset": picture.offset_data, "size": picture.size, "header": zlib.crc32(header)}
    yield {"name": picture.name, **known, "json": sample}


def _sample_problem(sample: Any) -> str | None:
    if not isinstance(sample, dict):
        return f"has a json that is no object, but {short_repr(sample)}"
    for field in ("width", "height", "image_id"):
        value = sample.get(field, 1 if field == "image_id" else None)
        if type(value) is not int or not is_long(value) or (field != "image_id" and value < 1):
            return f"has {field}: {short_repr(value)}"
    rows = sample.get("annotations")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return f"has annotations: {short_repr(rows)}"
    return None


def _open(shard: Shard) -> BinaryIO:
    if isinstance(shard.file, Remote):
        return cast(BinaryIO, io.BufferedReader(_Chunks(shard), CHUNK))
    return shard.file.open("rb")


class _Chunks(io.RawIOBase):
    """A shard at a URL as a file, of which CHUNK bytes are fetched at once."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._shard.size)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._shard.size)
        if stop <= self._at:
            return 0
        data = self._shard.read(self._at, stop, 0)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
