"""Split annotation files, and their content in memory, into members and the texts of entries."""

import codecs
import contextlib
import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import msgspec

from detlite.files.errors import DataError, short_repr
from detlite.files.json_files import explain_not_coco, explain_not_json
from detlite.files.reading import open_file

LISTS = ("images", "annotations", "categories")
_BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class Document:
    """The content of an annotation file.

    Attributes:
        members: the members except `LISTS`.
        texts: for each of `LISTS` the JSON texts of its entries, as bytes or `msgspec.Raw`.
    """

    members: dict[str, Any]
    texts: dict[str, list[Any]]


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Do not look for cycles among many new objects, which takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_gc()
def read_document(file: Path) -> Document:
    """Read an annotation file. Raises DataError if it is not in COCO's format.

    The texts are parts of a memory map of the file. JSON that only Python reads, such as NaN, other
    encodings, and damaged Unicode, is read as a whole, and its entries are written again.
    """
    try:
        with contextlib.closing(open_file(file)) as stream:
            empty = not stream.read(1)
            data: Any = b"" if empty else mmap(stream.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        texts = {key: msgspec.json.decode(raw[key], type=list[msgspec.Raw]) for key in LISTS}
        if _is_utf8(data):
            others = raw.keys() - {*LISTS}
            members = {key: json.loads(bytes(raw[key])) for key in raw if key in others}
            return Document(members, texts)
    except (ValueError, KeyError, RecursionError):  # which `json` reads, or explains
        pass
    try:
        return document_of(json.loads(bytes(data)), file)
    except DataError:
        raise
    except ValueError as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: not valid JSON: {error}{hint}") from error
    except RecursionError as error:
        raise DataError(f"{file}: not in COCO format: the JSON is nested too deeply") from error


def _is_utf8(data: mmap) -> bool:
    """Return True for valid UTF-8; `msgspec` does not examine the texts of entries."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _BLOCK):
        decoder.decode(data[start : start + _BLOCK])
    decoder.decode(b"", final=True)
    return True


def document_of(content: Any, name: object) -> Document:
    """Return content in memory, which may contain arrays, numbers of arrays, and bytes.

    DataError if it is not in COCO's format; `name` is its name in messages.
    """
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        hint = explain_not_json(name, ValueError()) if isinstance(name, Path) else ""
        raise DataError(f"{name}: not in COCO format: a JSON {kind}, not an object{hint}")
    for key in LISTS:
        if (rows := content.get(key)) is None:
            hint = explain_not_coco({*content})
            raise DataError(f"{name}: not in COCO format: {key!r} is missing{hint}")
        if not isinstance(rows, list | tuple):
            problem = f"{key!r} must be a list of objects, but is {short_repr(rows)}"
            raise DataError(f"{name}: not in COCO format: {problem}")
    members = {key: value for key, value in content.items() if key not in LISTS}
    texts = {key: [*map(to_json, content[key])] for key in LISTS}
    return Document(json.loads(to_json(members)), texts)


def to_json(content: Any) -> bytes:
    """Return content in memory as JSON; it may contain arrays, numbers of arrays, and bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        return value.tolist() if hasattr(value, "tolist") else list(value)

    try:
        return json.dumps(content, default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"content in memory must be JSON: {error}") from error


def is_coco(file: Path) -> bool:
    """Return True if a file has COCO's lists, and is not a panoptic file.

    True also for damaged JSON, so that `read_document` explains what is wrong with it.
    """
    try:
        texts = read_document(file).texts["annotations"]
        first = json.loads(bytes(texts[0])) if texts else {}
    except DataError as error:
        return isinstance(error.__cause__, ValueError)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(first, dict) and "segments_info" in first and "bbox" not in first)
