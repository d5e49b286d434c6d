"""Recognize inputs: files, folders, globs, lists, archives, URLs, videos and cameras.

`expand_input` expands them to names, each of one image or video. A name is a path, maybe with a
page (`scan.tif#page=2`), an http or https URL, another URL that fsspec reads (`s3://bucket/a.jpg`,
`zip://a.jpg::photos.zip`), a data URL, or for a camera a number.
"""

import binascii
import csv
import os
import re
import sys
import zipfile
from base64 import b64decode
from collections.abc import Sequence
from glob import escape, glob
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from detlite.data.images import listing
from detlite.files.errors import DataError, short_repr
from detlite.files.reading import read_text

_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DATA_URL = re.compile(r"data:[^,]*;base64,(.*)", re.DOTALL | re.IGNORECASE)
_STREAM = re.compile(r"(rtsps?|rtmps?|rtp|udp|srt|mms)://", re.IGNORECASE)
_WILDCARD = re.compile(r"[*?\[]")
_MAX_PATH = 4096  # characters
_PAGE = re.compile(r"(.+)#page=([1-9]\d*)")
VIDEO_SUFFIXES = (
    ".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg",
    ".mts", ".ogv", ".ts", ".webm", ".wmv",
)  # fmt: skip
_LIST_COLUMNS = ("file_name", "filename", "file", "image", "path", "url")  # of a CSV file
_MAX_LIST = 1 << 30  # bytes


def expand_input(source: str, exclude: Sequence[Path] = ()) -> str | list[str]:
    """Return the name of one image or video, or a list of the names of several.

    Only lists and archives are opened. A missing image is reported when it is read.

    Args:
        source: a file; a folder, for the images and videos in it, or else in its subfolders; a glob
            such as `photos/**/*.jpg`; a text file (.txt) with a name in each line, or "-" for the
            lines of the standard input; a CSV file with a column of names; a zip file; a URL, also
            of the kind file:// or rtsp://; or the number of a camera.
        exclude: skip files of these folders, such as drawn images, in folders and globs.

    Raises:
        DataError: the input is empty, or a folder, glob, list or archive contains no image or
            cannot be read.
    """
    source, excluded = _local(source), [folder.absolute() for folder in exclude]

    def is_excluded(path: Path) -> bool:
        return any(path.absolute().is_relative_to(folder) for folder in excluded)

    if source == "-":
        return _listed(sys.stdin.read().split("\n"), "the standard input")
    if is_any_url(source):
        return source
    if os.path.isdir(source):
        return [*map(str, listing.list_images(Path(source), is_excluded, VIDEO_SUFFIXES))]
    suffix = Path(source).suffix.lower()
    if suffix in (".txt", ".csv"):
        return _listed(_read_list(source, is_table=suffix == ".csv"), source)
    if suffix == ".zip":
        return _read_archive(source)
    if not _WILDCARD.search(source) or os.path.lexists(source):
        return str(Path(source))
    matches = listing.select_images(_glob(Path(source)), VIDEO_SUFFIXES)
    matches = [file for file in matches if not is_excluded(file)]
    if not matches:
        raise DataError(f"{source}: no image matches this pattern")
    return [*map(str, sorted(matches))]


def is_any_url(name: str) -> bool:
    """Return True for a URL of any kind, unless there is a file of this name."""
    is_written = _ANY_URL.match(name) or _DATA_URL.match(name)
    return bool(is_written) and not (len(name) < _MAX_PATH and os.path.lexists(name))


def is_video_name(name: str) -> bool:
    """Return True for the name of a video, by its suffix, a stream, or the number of a camera."""
    if is_live(name):
        return True
    path = urlsplit(name).path if is_any_url(name) else name
    return path.lower().endswith(VIDEO_SUFFIXES) and not Path(name).is_dir()


def is_live(name: str) -> bool:
    """Return True for a camera or a stream, which shows something else each time."""
    return bool(_STREAM.match(name)) or is_camera(name)


def is_camera(name: str) -> bool:
    """Return True if a name is a number, and there is no file or folder of that name."""
    return name.isdecimal() and not Path(name).exists()


def data_of(name: str) -> bytes | None:
    """Return the content of a data URL; None for another name. Raises DataError."""
    if (match := _DATA_URL.match(name)) is None:
        return None
    try:
        return b64decode(match[1], validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{short_repr(name)}: is not valid base64 ({error})") from error


def _local(source: str) -> str:
    """Return a name, or the path of a file URL; DataError if the text cannot be a name."""
    if not source.strip():
        raise DataError("an input is empty: name a file, a folder or a URL; . is this folder")
    if source.lower().startswith("file://"):
        return url2pathname(urlsplit(source).path)
    if len(source) > _MAX_PATH and not _DATA_URL.match(source):
        raise DataError(
            f"{short_repr(source)}: is too long for a path. Decode base64 to bytes, or write it as "
            "a data URL"
        )
    return source


def _glob(pattern: Path) -> set[Path]:
    """Return the paths that match a pattern. `**` follows links as `listing.list_files` does.

    Python's function follows a link of a folder to itself 40 times, and three links 3^40 times.
    """
    if "**" not in pattern.parts:
        return set(map(Path, glob(str(pattern))))
    index = pattern.parts.index("**")
    tail, found = pattern.parts[index + 1 :] or ("*",), set[Path]()
    for base in map(Path, glob(str(Path(*pattern.parts[:index]))) if index else ["."]):
        files = [file.relative_to(base) for file in listing.list_files(base)]
        for folder in {base, *(base / parent for file in files for parent in file.parents)}:
            found |= _glob(Path(escape(str(folder)), *tail))
    return found


def _read_list(source: str, is_table: bool) -> list[str]:
    """Return the lines of a list, or the names in a CSV file."""
    try:
        lines = read_text(Path(source), _MAX_LIST).split("\n")
        if not is_table:
            return lines
        header, *rows = csv.reader(lines)
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        raise DataError(f"{source}: the list of images cannot be read ({error})") from error
    columns = [cell.strip().lower() for cell in header]
    named = [columns.index(name) for name in _LIST_COLUMNS if name in columns]
    if not named and len(columns) > 1:
        raise DataError(
            f"{source}: name the column of the images {', '.join(_LIST_COLUMNS[:-1])} or "
            f"{_LIST_COLUMNS[-1]}: its columns are {', '.join(columns)}"
        )
    index, rows = (named[0], rows) if named else (0, [header, *rows])
    return list(dict.fromkeys(row[index] for row in rows if len(row) > index))


def _listed(lines: Sequence[str], source: str) -> list[str]:
    names = [_local(line.strip("\r")) for line in lines if line.strip()]
    if not names:
        raise DataError(f"{source}: the list contains no paths")
    return [name if is_any_url(name) else str(Path(name)) for name in names]


def _read_archive(source: str) -> list[str]:
    """Return the URLs of the images in a zip file, sorted."""
    try:
        with zipfile.ZipFile(source) as archive:
            members = [Path(name) for name in archive.namelist() if not name.endswith("/")]
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{source}: the zip file cannot be read ({error})") from error
    # Videos in it cannot be read, which is reported for each.
    images = sorted(one.as_posix() for one in listing.select_images(members, VIDEO_SUFFIXES))
    if not images:
        raise DataError(f"{source}: the zip file contains no images")
    return [f"zip://{name}::{source}" for name in images]


def split_page(image: str) -> tuple[str, int | None]:
    """Return the file or URL of a name, and the number of the page, from 1."""
    match = _PAGE.fullmatch(image)
    return (image, None) if match is None or os.path.lexists(image) else (match[1], int(match[2]))
