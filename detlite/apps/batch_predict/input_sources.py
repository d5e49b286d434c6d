"""What `detlite predict --input` names: files, folders, globs, lists and addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image

from detlite.data.errors import DataError
from detlite.data.remote.download import fetch, is_url, without_query
from detlite.inference.images import Loaded
from detlite.inference.predictor import Predictor

_LIST = ".txt"
_OTHER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")  # an address of any kind
_WILD = re.compile(r"[*?\[]")


def list_pictures(inputs: Sequence[str], leave_out: Path | None = None) -> list[str]:
    """The pictures that are named, as paths and addresses, in the order of `inputs`.

    Nothing is opened but lists. What is not there is an error of its own when it is read.

    Args:
        inputs: each a file; a folder, which stands for the pictures in it by name; a glob such as
            `photos/**/*.jpg`, for the pictures that match by name; a text file (.txt) with a path
            or an address in each line; or an address, http or https.
        leave_out: a folder of which no folder or glob gives anything: where pictures are drawn.

    Raises:
        DataError: a folder, glob or list has no picture, or cannot be read; or something is an
            address of another kind.
    """
    pictures: list[str] = []
    for given in inputs:
        _check_kind(given)
        if is_url(given):
            pictures.append(given)
        elif os.path.isdir(given):
            try:
                found = [os.path.join(given, name) for name in os.listdir(given)]
            except OSError as error:
                raise DataError(f"{given}: this folder cannot be read ({error})") from error
            pictures += _pictures(given, found, leave_out, "there is no picture in this folder")
        elif given.lower().endswith(_LIST):
            pictures += _read_list(given)
        elif _WILD.search(given) and not os.path.lexists(given):
            found = glob(given, recursive=True)
            pictures += _pictures(given, found, leave_out, "no picture matches this pattern")
        else:
            pictures.append(str(Path(given)))
    return pictures


def load_picture(predictor: Predictor, picture: str) -> Loaded:
    """Reads a picture from a path, or of FORMATS_OF_BYTES from an address, and resizes it.

    Raises:
        DataError: it cannot be had, or cannot be read.
    """
    if not is_url(picture):
        return predictor.load(picture)
    content = fetch(picture)
    try:
        return predictor.load(content)
    except DataError as error:
        problem = str(error).removeprefix("bytes: ")
        raise type(error)(f"{without_query(picture)}: {problem}") from error


def stem_of(picture: str) -> str:
    """A picture's name without its suffix, as part of a file's name: at most 50 characters."""
    if is_url(picture):
        name = unquote(Path(urlsplit(picture).path).name)
        return Path(re.sub(r"[^\w.-]", "_", name)).stem[:50]
    return Path(picture).stem[:50]


def _pictures(given: str, found: list[str], leave_out: Path | None, problem: str) -> list[str]:
    """Those of the found paths that Pillow has a reader for, by name."""
    formats = Image.registered_extensions()
    suffixes = tuple(suffix for suffix, kind in formats.items() if kind in Image.OPEN)
    outside = None if leave_out is None else os.path.join(os.path.abspath(leave_out), "")
    pictures = [
        str(Path(path))
        for path in found
        if path.lower().endswith(suffixes)
        and not (outside and os.path.abspath(path).startswith(outside))
    ]
    if not pictures:
        raise DataError(f"{given}: {problem}")
    return sorted(pictures)


def _read_list(given: str) -> list[str]:
    try:
        text = Path(given).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{given}: this list of pictures cannot be read ({error})") from error
    pictures = [line.strip("\r") for line in text.split("\n") if line.strip()]
    if not pictures:
        raise DataError(f"{given}: there is no path in this list")
    for picture in pictures:
        _check_kind(picture)
    return pictures


def _check_kind(name: str) -> None:
    if _OTHER.match(name) and not is_url(name) and not os.path.lexists(name):
        raise DataError(
            f"{without_query(name)}: only addresses of http and https are taken: download it first"
        )
