"""Read the entries of a tar file in WebDataset form.

An entry is an image and a json file that differ in their suffixes alone and are adjacent:
`a/0001.jpg`, `a/0001.json`. The json has `width`, `height`, `annotations` in COCO form without
`image_id`, and optionally `image_id`. Other files are ignored.
"""

import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO, cast

from detlite.data.datasets.coco_checks import is_int64
from detlite.data.errors import DataError, short_repr

from .locations import RemotePath
from .shards import BLOCK, CHUNK, Shard

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff")


def read_entries(shard: Shard) -> Iterator[dict[str, Any]]:
    """Yield the entries of a shard in its order. Raises DataError.

    Yields:
        `json`, `name`, and the `offset`, `size` and `header` of the image, see `ShardImage`; or
        `problem`: what is wrong with an entry or with the shard.
    """
    try:
        with _open(shard) as source, tarfile.open(fileobj=source, mode="r:") as tar:
            for key, members in groupby(_files(tar), lambda member: _split_suffix(member.name)[0]):
                yield from _entry(key, list(members), source)
            source.seek(tar.offset)
            if source.read(BLOCK) != bytes(BLOCK):
                yield {"problem": f"the shard is truncated or damaged at byte {tar.offset}"}
    except OSError as error:
        raise DataError(f"{shard.file}: cannot be read ({error.strerror or error})") from error
    except (tarfile.TarError, EOFError) as error:
        yield {"problem": f"the shard is truncated or damaged ({error})"}


def _files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all members
        if member.isreg():
            yield member


def _split_suffix(name: str) -> tuple[str, str]:
    """Split a name at the first dot of its last part: the key of the entry, and the suffix."""
    folder, mark, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    return f"{folder}{mark}{stem}", suffix.lower()


def _entry(
    key: str, members: Sequence[tarfile.TarInfo], source: BinaryIO
) -> Iterator[dict[str, Any]]:
    """Yield the entry that the files of one key are, if any."""
    by_suffix = {_split_suffix(member.name)[1]: member for member in members}
    images = [by_suffix[suffix] for suffix in IMAGE_SUFFIXES if suffix in by_suffix]
    json_file = by_suffix.get("json")
    if json_file is None and not images:
        return
    if json_file is None or len(images) != 1:
        missing = "no json" if json_file is None else f"{len(images)} images"
        yield {"problem": f"{short_repr(key)} has {missing}"}
        return
    source.seek(json_file.offset_data)
    text = source.read(json_file.size)
    if len(text) < json_file.size:
        return  # the shard is truncated, which `read_entries` reports
    try:
        sample = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield {"problem": f"{short_repr(key)} is not JSON: {error}"}
        return
    problem = _sample_problem(sample)
    if problem:
        yield {"problem": f"{short_repr(key)} {problem}"}
        return
    (image,) = images
    source.seek(image.offset_data - BLOCK)
    header = zlib.crc32(source.read(BLOCK))
    position = {"offset": image.offset_data, "size": image.size, "header": header}
    yield {"name": image.name, **position, "json": sample}


def _sample_problem(sample: Any) -> str | None:
    if not isinstance(sample, dict):
        return f"has a json that is not an object: {short_repr(sample)}"
    for field in ("width", "height", "image_id"):
        value = sample.get(field, 1 if field == "image_id" else None)
        if type(value) is not int or not is_int64(value) or (field != "image_id" and value < 1):
            return f"has {field}: {short_repr(value)}"
    annotations = sample.get("annotations")
    if not isinstance(annotations, list) or not all(isinstance(one, dict) for one in annotations):
        return f"has annotations: {short_repr(annotations)}"
    return None


def _open(shard: Shard) -> BinaryIO:
    if isinstance(shard.file, RemotePath):
        return cast(BinaryIO, io.BufferedReader(_RemoteShardFile(shard), CHUNK))
    return shard.file.open("rb")


class _RemoteShardFile(io.RawIOBase):
    """A remote shard as a file object. A buffer around it reads CHUNK bytes per request."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._shard.size}
        self._position = offset + starts[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        stop = min(self._position + len(buffer), self._shard.size)
        if stop <= self._position:
            return 0
        data = self._shard.read(self._position, stop, 0)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
