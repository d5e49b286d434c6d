"""COCO annotation files: read, and their lists and entries checked."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from .errors import DataError, shown

_SHOWN = 5  # problems written out in the log; the rest are counted
_LONGEST = 300  # characters of a problem, which may name a file
_logger = logging.getLogger(__name__)


def report(problems: Sequence[str], file: Path, skip: bool) -> None:
    """Logs the problems of a file and how many there are, or unless `skip` raises a DataError."""
    written = [shorten(problem, _LONGEST) for problem in problems[:_SHOWN]]
    if problems and not skip:
        more = f" (the first of {len(problems)} problems)" if len(problems) > 1 else ""
        raise DataError(
            f"{file}: {written[0]}{more}; mend the file, or leave such entries out with "
            "DATASETS.ON_BAD_ANNOTATION: skip"
        )
    for problem in written:
        _logger.warning("%s: skipped: %s", file, problem)
    if problems:
        _logger.warning("%s: skipped %d bad entries in all", file, len(problems))


def read_coco_json(file: Path, by_url: bool = False) -> dict[str, Any]:
    """Reads an annotation file and checks its lists, image entries and category entries.

    With `by_url` pictures are called as `coco_url` ends, where it is given: `val2017/<picture>`.

    Returns:
        The file's content; `annotations` is a list of mappings, not looked into yet, and each of
        `images` has a `file_name`.

    Raises:
        DataError: missing, not JSON, not COCO, or ids of images or categories, or names of
            categories, that occur twice.
    """
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{file}: is not JSON: {error}") from error
    except RecursionError as error:
        raise DataError(f"{file}: is not in COCO form: nested too deep") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: is not in COCO form: holds a {type(content).__name__}")
    for key in ("images", "annotations", "categories"):
        rows = content.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            what = "has no" if rows is None else "holds something else than a list of objects as"
            raise DataError(f"{file}: is not in COCO form: {what} {key!r}")
    for image in content["images"]:
        # LVIS v1 has the address alone, which ends in train2017/<picture> or val2017/<picture>.
        if (by_url or "file_name" not in image) and isinstance(image.get("coco_url"), str):
            image["file_name"] = "/".join(image["coco_url"].split("/")[-2:])
    _check_rows(file, content, "images", {"file_name": str, "height": int, "width": int})
    _check_rows(file, content, "categories", {"name": str})
    for row in content["images"]:
        if row["height"] < 1 or row["width"] < 1:
            raise DataError(f"{file}: image {row['id']} has size {row['width']}x{row['height']}")
    first: dict[str, int] = {}
    for row in content["categories"]:
        if first.setdefault(row["name"], row["id"]) != row["id"]:
            raise DataError(
                f"{file}: the categories {first[row['name']]} and {row['id']} have one name, "
                f"{shown(row['name'])}: results are told by it, so give each its own"
            )
    return content


def _check_rows(file: Path, content: dict[str, Any], key: str, fields: Mapping[str, type]) -> None:
    if not content[key]:
        raise DataError(f"{file}: is not in COCO form: {key!r} is empty")
    seen = set()
    for position, row in enumerate(content[key]):
        for field, kind in {"id": int, **fields}.items():
            if type(row.get(field)) is not kind:
                raise DataError(
                    f"{file}: is not in COCO form: {key}[{position}] "
                    f"(id {shown(row.get('id'))}) has {field}: {shown(row.get(field))}, "
                    f"not {'an' if kind is int else 'a'} {kind.__name__}"
                )
        if row["id"] in seen:
            raise DataError(f"{file}: the id {row['id']} occurs twice in {key!r}")
        seen.add(row["id"])
