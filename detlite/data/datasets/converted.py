"""Annotation files in COCO's form that are made from other forms when they are first asked for."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detlite.data.errors import DataError

logger = logging.getLogger(__name__)


def converted_file(root: Path, name: str, make: Callable[[], dict[str, Any]]) -> Path:
    """`<DATASETS.ROOT>/converted/<name>.json`, written with what `make` gives unless it is there.

    It appears whole or not at all, also when several processes write it at once. Whoever changes
    the files that it is made from must delete it.

    Raises:
        DataError: it cannot be written, or whatever `make` raises.
    """
    file = root / "converted" / f"{name}.json"
    if file.is_file():
        return file
    content = make()
    try:
        file.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
            unfinished = Path(temporary) / file.name
            unfinished.write_text(json.dumps(content))
            unfinished.replace(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be written ({error.strerror})") from error
    logger.info("%s: made %s of %d images", name, file, len(content["images"]))
    return file


def existing(path: Path, name: str) -> Path:
    """`path`; a DataError, that the data set expects it there, if it does not exist."""
    if not path.exists():
        raise DataError(
            f"data set {name}: {path} is missing; put it there, or set DATASETS.ROOT to the folder "
            "that holds it"
        )
    return path
