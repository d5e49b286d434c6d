"""Annotation files in COCO form that are converted from other forms at first use."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detlite.atomic_write import atomic_open
from detlite.data.errors import DataError

logger = logging.getLogger(__name__)


def converted_file(root: Path, name: str, convert: Callable[[], dict[str, Any]]) -> Path:
    """Return `<DATASETS.ROOT>/converted/<name>.json`; write the result of `convert` if missing.

    Delete the file after a change of the files that it was converted from.

    Raises:
        DataError: the file cannot be written, or `convert` raises it.
    """
    file = root / "converted" / f"{name}.json"
    if file.is_file():
        return file
    content = convert()
    try:
        file.parent.mkdir(exist_ok=True)
        with atomic_open(file, unique=True) as stream:
            json.dump(content, stream)
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error.strerror})") from error
    logger.info("%s: converted %d images to %s", name, len(content["images"]), file)
    return file


def require(path: Path, name: str) -> Path:
    """Return `path`, or raise DataError if it does not exist; `name` is that of the data set."""
    if not path.exists():
        raise DataError(
            f"data set {name}: {path} does not exist. Put it there, or set DATASETS.ROOT to the "
            "folder that holds it"
        )
    return path
