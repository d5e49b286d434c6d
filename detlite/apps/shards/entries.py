"""Read the entries of a tar file in the WebDataset format.

An entry is an image and a json file, adjacent and with the same name except for the suffix:
`a/0001.jpg`, `a/0001.json`. The json has `width`, `height`, `annotations` in COCO's format without
`image_id`, and optionally `image_id`. Other files are ignored.

Python's tarfile trusts the sizes in a file: a damaged file can make it allocate any memory or never
end. It is therefore only used to parse single headers.
"""

import json
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from detlite.data.datasets.coco_values import parse_integer
from detlite.data.remote.remote_path import RemotePath
from detlite.files.errors import DataError, short_repr

from .tar_files import BLOCK, CHUNK, Shard

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff")
_LOCAL_CHUNK = 1 << 16  # bytes
_MAX_JSON, _MAX_IMAGE, _MAX_EXTENSION = 1 << 26, 1 << 30, 1 << 20  # bytes
_EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"x", b"g", b"X")  # of headers
_PAX_RECORD = re.compile(rb"\d+ ([^=\n]+)=([^\n]*)\n")


class _File(NamedTuple):
    """A file in a shard, with the position and number of its bytes."""

    name: str
    start: int
    size: int


class _Reader:
    """Reads a shard at increasing positions, CHUNK bytes per request.

    Attributes:
        problem: why reading ended before the end of the shard.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard, self._start, self._data = shard, 0, b""
        self.problem = ""
        self._chunk = CHUNK if isinstance(shard.file, RemotePath) else _LOCAL_CHUNK

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or fewer at the end of the shard."""
        stop = max(start, min(start + size, self.shard.size))
        if not self._start <= start <= stop <= self._start + len(self._data):
            chunk_stop = max(stop, min(start + self._chunk, self.shard.size))
            self._start, self._data = start, self.shard.read(start, chunk_stop, 0)
        return self._data[start - self._start : stop - self._start]


def read_entries(shard: Shard) -> Iterator[dict[str, Any]]:
    """Yield the entries of a shard in its order. Raises DataError.

    Yields:
        A dict with `json`, `name`, and the image's `offset`, `size` and `header` (see
        `ShardImage`), or with `problem`: what is wrong with an entry or the shard.
    """
    reader = _Reader(shard)
    try:
        for key, files in groupby(_files(reader), lambda file: _split_suffix(file.name)[0]):
            if entry := _entry(key, files, reader):
                yield entry
    except OSError as error:
        raise DataError(f"{shard.file}: cannot be read ({error.strerror or error})") from error
    if reader.problem:
        yield {"problem": reader.problem}


def _files(reader: _Reader) -> Iterator[_File]:
    """Yield the regular files of a shard up to the first damage."""
    position, extended = 0, dict[str, str]()  # extended: long fields of the next header
    while True:
        block = reader.read(position, BLOCK)
        if block == bytes(BLOCK):  # the end of the archive
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            size = int(extended.get("size", header.size))
            is_extension = header.type in _EXTENSIONS
            if not (is_extension or header.isreg() or header.type not in tarfile.SUPPORTED_TYPES):
                size = 0  # folders and links
            start = position + BLOCK
            if not 0 <= size <= (_MAX_EXTENSION if is_extension else reader.shard.size - start):
                raise ValueError(f"{short_repr(header.name)} has {size} bytes")
            if header.type == tarfile.GNUTYPE_SPARSE or any("sparse" in key for key in extended):
                raise ValueError(f"{short_repr(header.name)} is sparse")
        except (tarfile.HeaderError, ValueError) as error:
            reader.problem = f"the shard is truncated or damaged at byte {position} ({error})"
            return
        if is_extension:
            data = reader.read(start, size)
            records = [(b"path", data.rstrip(b"\0"))]
            if header.type != tarfile.GNUTYPE_LONGNAME:
                records = _PAX_RECORD.findall(data) if header.type in b"xX" else []
            extended |= {
                key.decode("latin1"): value.decode("utf-8", "surrogateescape")
                for key, value in records
            }
        else:
            if header.isreg():
                yield _File(extended.get("path", header.name), start, size)
            extended = {}
        position = start + -(-size // BLOCK) * BLOCK


def _split_suffix(name: str) -> tuple[str, str]:
    """Split a name at the first dot of its last part: the key of the entry, and the suffix."""
    folder, mark, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    return f"{folder}{mark}{stem}", suffix.lower()


def _entry(key: str, files: Iterable[_File], reader: _Reader) -> dict[str, Any] | None:
    """Return the entry of the files with one key, or its problem; None without image and json."""
    by_suffix = {_split_suffix(file.name)[1]: file for file in files}
    images = [by_suffix[suffix] for suffix in IMAGE_SUFFIXES if suffix in by_suffix]
    json_file = by_suffix.get("json")
    if json_file is None and not images:
        return None
    if json_file is None or len(images) != 1:
        missing = "no json" if json_file is None else f"{len(images)} images"
        return {"problem": f"{short_repr(key)} has {missing}"}
    (image,) = images
    if json_file.size > _MAX_JSON or image.size > _MAX_IMAGE:
        return {"problem": f"{short_repr(key)} has {json_file.size + image.size} bytes"}
    text = reader.read(json_file.start, json_file.size)
    try:
        sample = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {"problem": f"{short_repr(key)} is not JSON: {error}"}
    if problem := _sample_problem(sample):
        return {"problem": f"{short_repr(key)} {problem}"}
    header = zlib.crc32(reader.read(image.start - BLOCK, BLOCK))
    position = {"offset": image.start, "size": image.size, "header": header}
    return {"name": image.name, **position, "json": sample}


def _sample_problem(sample: Any) -> str | None:
    if not isinstance(sample, dict):
        return f"has a json that is not an object: {short_repr(sample)}"
    for field in ("width", "height", "image_id"):
        value = sample.get(field, 1 if field == "image_id" else None)
        number = parse_integer(value)
        if number is None or (field != "image_id" and number < 1):
            return f"has {field}: {short_repr(value)}"
    annotations = sample.get("annotations")
    if not isinstance(annotations, list) or not all(isinstance(row, dict) for row in annotations):
        return f"has annotations: {short_repr(annotations)}"
    return None
