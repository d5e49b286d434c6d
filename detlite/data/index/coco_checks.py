"""COCO annotation files: what is wrong with their lists, images and categories."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from detlite.data.errors import DataError, short_repr

from .annotation_checks import is_long
from .index import name_picture

MOST_SHOWN = 5  # problems written out in the log; the rest are counted
_LONGEST = 300  # characters of a problem, which may name a file
_logger = logging.getLogger(__name__)


def report(problems: Sequence[str], count: int, file: object, skip: bool) -> None:
    """Logs the first of `count` problems of a file, or unless `skip` raises a DataError."""
    written = [shorten(problem, _LONGEST) for problem in problems[:MOST_SHOWN]]
    if written and not skip:
        more = f" (the first of {count} problems)" if count > 1 else ""
        raise DataError(
            f"{file}: {written[0]}{more}; mend the file, or leave such entries out with "
            "DATASETS.ON_BAD_ANNOTATION: skip"
        )
    for problem in written:
        _logger.warning("%s: skipped: %s", file, problem)
    if written:
        _logger.warning("%s: skipped %d bad entries in all", file, count)


def keypoint_names(categories: Sequence[dict[str, Any]]) -> list[str]:
    """Those of the first category that names keypoints; all categories share them."""
    for row in categories:
        names = row.get("keypoints")
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return []


def check_images(
    file: Path, by_url: bool, rows: Iterable[dict[str, Any]]
) -> tuple[np.ndarray, np.ndarray, set[str]]:
    """Checks the entries of images, in the file's order.

    Args:
        file: which messages name.
        by_url: see `name_picture`.
        rows: the entries.

    Returns:
        Ids int64 [I], sizes int64 [I, 2] of (height, width), and the folders of the pictures.

    Raises:
        DataError: there are none, or one lacks a field, or has the id of another.
    """
    ids, sizes, folders = array("q"), array("q"), set()
    fields = {"file_name": str, "height": int, "width": int}
    named = (name_picture(row, by_url) for row in rows)
    for row in _checked(file, "images", named, fields):
        ids.append(row["id"])
        sizes.extend((row["height"], row["width"]))
        folders.add(row["file_name"].rpartition("/")[0])
    return np.array(ids), np.array(sizes).reshape(-1, 2), folders


def check_categories(file: Path, rows: list[dict[str, Any]]) -> None:
    """Raises DataError: there are none, or one lacks a field, or has the id or name of another."""
    first: dict[str, int] = {}
    for row in _checked(file, "categories", rows, {"name": str}):
        if first.setdefault(row["name"], row["id"]) != row["id"]:
            raise DataError(
                f"{file}: the categories {first[row['name']]} and {row['id']} have one name, "
                f"{short_repr(row['name'])}: results are told by it, so give each its own"
            )


def _checked(
    file: Path, key: str, rows: Iterable[dict[str, Any]], fields: Mapping[str, type]
) -> Iterator[dict[str, Any]]:
    """The rows, as long as they have the fields and an id of their own."""
    seen = set()
    for position, row in enumerate(rows):
        for field, kind in {"id": int, **fields}.items():
            value: Any = row.get(field)
            if type(value) is not kind or (isinstance(value, int) and not is_long(value)):
                raise DataError(
                    f"{file}: is not in COCO form: {key}[{position}] "
                    f"(id {short_repr(row.get('id'))}) has {field}: {short_repr(value)}, "
                    f"not {'an' if kind is int else 'a'} {kind.__name__}"
                    f"{' of 64 bits' if type(value) is kind else ''}"
                )
        if row["id"] in seen:
            raise DataError(f"{file}: the id {row['id']} occurs twice in {key!r}")
        seen.add(row["id"])
        yield row
    if not seen:
        raise DataError(f"{file}: is not in COCO form: {key!r} is empty")
