"""The inputs of `detlite predict --input`: files, folders, globs, lists and URLs."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from glob import escape, glob
from pathlib import Path
from urllib.parse import unquote, urlsplit

from detlite.data.images import listing
from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import count_pages
from detlite.files.download import is_url
from detlite.files.errors import DataError
from detlite.files.reading import read_text
from detlite.files.retry import without_secrets
from detlite.inference.prediction import LoadedImage
from detlite.inference.predictor import Predictor

_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WILDCARD = re.compile(r"[*?\[]")
_MAX_STEM = 50
_PAGE = re.compile(r"(.+)#page=([1-9]\d*)")
_PAGED_SUFFIXES = (".tif", ".tiff", ".gif", ".webp", ".png", ".apng", ".avif")
_MAX_LIST = 1 << 30  # bytes


def list_images(inputs: Sequence[str], exclude: Sequence[Path] = ()) -> list[str]:
    """List the paths and URLs of images, in the order of `inputs`.

    Only lists are opened. A missing image is reported when it is read.

    Args:
        inputs: each a file; a folder, for the images in it, or else in its subfolders; a glob such
            as `photos/**/*.jpg`; a text file (.txt) with a path or URL in each line; or an http or
            https URL. The images of folders and globs are sorted by name.
        exclude: skip files of these folders, such as drawn images, in folders and globs.

    Raises:
        DataError: a folder, glob or list contains no image or cannot be read, or the scheme of a
            URL is not supported.
    """
    excluded = [folder.absolute() for folder in exclude]

    def is_excluded(path: Path) -> bool:
        return any(path.absolute().is_relative_to(folder) for folder in excluded)

    images: list[str] = []
    for source in inputs:
        _check_scheme(source)
        if is_url(source):
            images.append(source)
        elif os.path.isdir(source):
            images += map(str, listing.list_images(Path(source), is_excluded))
        elif source.lower().endswith(".txt"):
            images += _read_list(source)
        elif _WILDCARD.search(source) and not os.path.lexists(source):
            matches = listing.select_images(_glob(Path(source)))
            matches = [file for file in matches if not is_excluded(file)]
            if not matches:
                raise DataError(f"{source}: no image matches this pattern")
            images += map(str, sorted(matches))
        else:
            images.append(str(Path(source)))
    return images


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


def _read_list(source: str) -> list[str]:
    try:
        text = read_text(Path(source), _MAX_LIST)
    except (OSError, UnicodeError) as error:
        raise DataError(f"{source}: the list of images cannot be read ({error})") from error
    images = [line.strip("\r") for line in text.split("\n") if line.strip()]
    if not images:
        raise DataError(f"{source}: the list contains no paths")
    for image in images:
        _check_scheme(image)
    return images


def _check_scheme(source: str) -> None:
    if _ANY_URL.match(source) and not is_url(source) and not os.path.lexists(source):
        raise DataError(
            f"{without_secrets(source)}: only http and https URLs are supported: download the image"
        )


def expand_pages(images: Sequence[str], options: ImageOptions) -> list[str]:
    """Replace local files of several pages by one name for each: `scan.tif#page=1`, ...

    Only files of formats that can have pages are opened. A damaged file is reported when it is
    read.
    """
    expanded: list[str] = []
    for image in images:
        pages = 1
        if image.lower().endswith(_PAGED_SUFFIXES) and not is_url(image):
            with suppress(DataError):
                pages = count_pages(image, options)
        expanded += [image] if pages == 1 else [f"{image}#page={k + 1}" for k in range(pages)]
    return expanded


def split_page(image: str) -> tuple[str, int | None]:
    """Return the file or URL of a name from `expand_pages`, and the number of the page, from 1."""
    match = _PAGE.fullmatch(image)
    return (image, None) if match is None or os.path.lexists(image) else (match[1], int(match[2]))


def load_image(predictor: Predictor, source: str) -> LoadedImage:
    """Read an image from a path or URL and resize it.

    Raises:
        DataError: it cannot be downloaded or read. URLs support fewer formats than files.
    """
    file, number = split_page(source)
    return predictor.load(file, None if number is None else number - 1)


def output_stem(image: str) -> str:
    """Return the stem for output files of an image: its name without suffix, shortened."""
    image, page = split_page(image)
    if is_url(image):
        image = re.sub(r"[^\w.-]", "_", unquote(Path(urlsplit(image).path).name))
    stem = Path(image).stem[:_MAX_STEM] + ("" if page is None else f"_page{page}")
    return "".join(character if character.isprintable() else "_" for character in stem)
