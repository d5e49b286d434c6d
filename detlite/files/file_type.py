"""Read and write files, and explain what to do with files of other types than expected."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from detlite.files.atomic_write import atomic_open
from detlite.files.errors import DataError

_READ = 1 << 24  # bytes
_CONVERT = "`detlite init --data FOLDER --coco FILE` converts it to COCO json"


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


def read_json(file: Path) -> Any:
    """Return the content of a JSON file. Raises DataError."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: cannot be read as JSON: {error}{hint}") from error


def write_file(file: Path, data: bytes) -> None:
    """Write a file atomically, and create its folder. Raises DataError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(file, "wb", unique=True) as stream:
            stream.write(data)
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error})") from error


def explain_not_json(file: Path, error: Exception) -> str:
    """Return a hint about an annotation file that is not JSON, such as "; it is empty", or ""."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_READ)
    except OSError:
        return ""
    start = data[:1024].lstrip()
    hint = explain_not_downloaded(data)
    if hint:
        pass
    elif start.startswith(b"\x1f\x8b"):
        hint = "it is compressed: unpack it with gunzip"
    elif isinstance(error, UnicodeDecodeError):
        hint = "an editor saved it in another encoding: save it as UTF-8"
    elif not start:
        hint = "it is empty"
    elif start.startswith(b"<"):
        hint = f"it is XML, for example of PASCAL VOC: {_CONVERT}"
    elif re.match(rb"\d+( +[-+.\de]+){4,}\s*$", start, re.MULTILINE):
        hint = f"it contains YOLO labels: {_CONVERT}"
    elif re.match(rb"[{\[]\s*[{\[]?\s*'", start):
        hint = "it has single quotes like a printed Python dict: write it with json.dump"
    elif "Extra data" in str(error):
        hint = "it has several JSON values, as JSON lines: write one list or object"
    elif re.search(rb",\s*[\]}]", data):
        hint = "remove the comma before the closing bracket"
    return f"; {hint}" if hint else ""


def explain_not_coco(keys: set[str]) -> str:
    """Return a hint about a JSON object without COCO's keys, or ""."""
    if "shapes" in keys:
        return f"; it contains LabelMe labels: {_CONVERT}"
    lists = {"images", "annotations", "categories"}
    if capitals := sorted(key for key in keys if key.lower() in lists - {key}):
        return f"; write {', '.join(capitals)} in lower case"
    if "annotations" in keys or "images" in keys:
        return "; 'images', 'annotations' and 'categories' are all required"
    return ""
