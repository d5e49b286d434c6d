"""What a file is that was taken for another kind, and what to do with it: ends of messages."""

from __future__ import annotations

import re
from pathlib import Path

_READ = 1 << 24  # bytes
_CONVERT = "`detlite init --data FOLDER --coco FILE` makes COCO json of them"


def stored_elsewhere(data: bytes) -> str:
    """What the beginning of a file that was not really downloaded is, or ""."""
    start = data[:1024].lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a pointer of git-lfs, not the file itself: fetch that by `git lfs pull`"
    if start.startswith((b"<!doctype html", b"<html")):
        return "it is a web page, not the file: download it anew, by the address of the file itself"
    return ""


def why_no_json(file: Path, error: ValueError) -> str:
    """What to do about an annotation file that is not JSON, such as "; it holds ...", or ""."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_READ)
    except OSError:
        return ""
    start = data[:1024].lstrip()
    lines = start.splitlines()
    reason = stored_elsewhere(data)
    if reason:
        pass
    elif isinstance(error, UnicodeDecodeError):
        reason = "save it in UTF-8: an editor has written it in a code page of its own"
    elif not start:
        reason = "it is empty"
    elif start.startswith(b"<"):
        reason = f"it is XML, such as PASCAL VOC's: {_CONVERT}"
    elif re.fullmatch(rb"\d+( +[-+.\de]+){4,}", lines[0].strip()):
        reason = f"it holds labels of YOLO: {_CONVERT}"
    elif re.match(rb"[{\[]\s*[{\[]?\s*'", start):
        reason = "it has single quotes, as Python prints a dict: write it by json.dump"
    elif re.search(rb",\s*[\]}]", data):
        reason = "remove the comma before the closing bracket"
    return f"; {reason}" if reason else ""


def why_no_coco(keys: set[str]) -> str:
    """The same of JSON that is an object with other keys than COCO's."""
    if "shapes" in keys:
        return f"; it holds labels of LabelMe: {_CONVERT}"
    if "annotations" in keys or "images" in keys:
        return "; all of 'images', 'annotations' and 'categories' are needed"
    return ""
