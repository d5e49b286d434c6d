"""Read JSON files, and explain what is wrong with those that are not JSON."""

import json
import re
from pathlib import Path
from typing import Any

from .errors import DataError
from .reading import explain_not_downloaded, open_file, read_file

_MAX_BYTES = 1 << 32
_EXAMINED = 1 << 24  # bytes
_CONVERT = "`detlite init --data FOLDER --coco FILE` converts it to COCO json"
# Patterns of the line "type of error: message" with the content of the file after it, and hints.
_HINTS = (
    (rb"\A.*\n\x1f\x8b", "it is compressed: unpack it with gunzip"),
    (rb"\AUnicodeDecodeError", "an editor saved it in another encoding: save it as UTF-8"),
    (rb"\A.*\n\s*\Z", "it is empty"),
    (rb"\A.*\n\s*<", f"it is XML, for example of PASCAL VOC: {_CONVERT}"),
    (rb"\A.*\n\s*\d+( +[-+.\de]+){4,}\s*$", f"it contains YOLO labels: {_CONVERT}"),
    (
        rb"\A.*\n\s*[{\[]\s*[{\[]?\s*'",
        "it has single quotes like printed Python: use json.dump",
    ),
    (rb"\A.*Extra data", "it has several JSON values, as JSON lines: write one list or object"),
    (rb",\s*[\]}]", "remove the comma before the closing bracket"),
)


def read_json(file: Path) -> Any:
    """Return the content of a JSON file. Raises DataError."""
    try:
        return json.loads(read_file(file, _MAX_BYTES))
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        hint = explain_not_json(file, error)
        raise DataError(f"{file}: cannot be read as JSON: {error}{hint}") from error


def explain_not_json(file: Path, error: Exception) -> str:
    """Return a hint about an annotation file that is not JSON, such as "; it is empty", or ""."""
    try:
        with open_file(file) as stream:
            data = stream.read(_EXAMINED)
    except OSError:
        return ""
    text = f"{type(error).__name__}: {error}\n".encode() + data
    matches = (hint for pattern, hint in _HINTS if re.search(pattern, text, re.MULTILINE))
    hint = explain_not_downloaded(data) or next(matches, "")
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
