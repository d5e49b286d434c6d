"""The rules by which names of categories, and of files, are equal."""

import os
import posixpath
import re
import unicodedata
from urllib.parse import unquote


def category_form(name: str) -> str:
    """Return a name without differences in case, spaces, - and _, and Unicode's forms."""
    name = unicodedata.normalize("NFKC", name)
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def file_form(name: str) -> str:
    """Return a file name without differences that depend on the system that wrote it.

    These are case, Unicode's forms, backslashes, and characters such as %20.
    """
    return unicodedata.normalize("NFC", unquote(name.replace("\\", "/"))).casefold()


def clean_path(name: str) -> str:
    """Return a path of any system with slashes and without "." and ".."; URLs are unchanged."""
    name = name.replace("\\", "/")
    return name if "://" in name else posixpath.normpath(name)


def is_inside(name: os.PathLike[str] | str, folder: os.PathLike[str] | str) -> bool:
    """Return True if a path relative to a folder does not lead out of it; links are not followed.

    A file of labels from elsewhere may name only images in the folders that the user has named.
    """
    root = os.path.abspath(folder)
    return os.path.commonpath([root, os.path.abspath(os.path.join(root, name))]) == root


def file_key(path: os.PathLike[str] | str) -> str:
    """Return a text that is equal for all paths of a file, also by links."""
    return os.path.normcase(os.path.realpath(path))
