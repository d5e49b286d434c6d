"""Find the images of a dataset by their names in label files, which another machine may have
written."""

import json
import os
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from detlite.data.images.formats import image_suffixes
from detlite.data.images.listing import list_files, select_images
from detlite.engine.run_files import METRICS_FILE
from detlite.files.errors import DataError
from detlite.files.reading import open_file, read_file, read_text
from detlite.structures.names import file_form, is_inside

OUTPUT_FOLDER = "detlite"  # in the folder of a dataset, for the files that `detlite init` writes
SPLITS = {"trainval": "train", "train": "train", "training": "train", "val": "val", "valid": "val",
          "validation": "val", "test": "test", "testing": "test"}  # fmt: skip
# The splits of images that no list of a split names, and of images without labels.
UNLISTED, UNLABELED = "unlisted", "unlabeled"
# Names of folders of labels.
_LABEL_FOLDERS = {"annotations", "labels", "ann"}
_NO_PHOTOS = ("SegmentationClass", "SegmentationObject")  # masks with the names of images
_LABELS = {".json", ".xml", ".txt", ".csv", ".yaml", ".yml"}
# Folders of drawings of labels by LabelMe.
_DRAWINGS = {"visualization", "annotationsvisualization", "segmentationclassvisualization",
             "segmentationobjectvisualization"}  # fmt: skip
# Files of `detlite predict` and `detlite train` that could be annotations.
_RESULTS = re.compile(
    r"(images|results.*|manifest|evaluation)\.(json|csv)|config\.yaml|(detections|curves)\.png"
)
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-(?=.)")  # Label Studio puts it in front of file names
_SAMPLE = 3  # files that decide the format
_MAX_BYTES = 1 << 28  # of a file of labels
_HEAD = 1 << 16  # bytes at the start and the end of a file that `excerpt` returns


class NoImageError(DataError):
    """A name in a label file matches no image in a supported format."""


class FileTree:
    """The sorted `files` in the folder `root` and its subfolders, and the `images` among them.

    Args:
        data: a folder, or a single label file. The images of a label file are searched for in its
            folder, or in the parent folder if it is in a folder such as `labels`.
        images: folder to search for images in instead.
    """

    def __init__(self, data: Path, images: Path | None = None) -> None:
        if not data.exists():
            raise DataError(f"{data}: there is no such file or folder")
        self.root, self.data = (data if data.is_dir() else data.parent), data
        self.files = _list_files(data) if data.is_dir() else [data]
        in_label_folder = data.is_file() and self.root.name.lower() in _LABEL_FOLDERS
        self.image_root = images or (self.root.parent if in_label_folder else self.root)
        files = self.files if self.image_root == data else _list_files(self.image_root)
        self.images = select_images(files)
        self._by_name: defaultdict[str, list[Path]] = defaultdict(list)
        for file in self.images:
            if file.parent.name not in _NO_PHOTOS:
                self._by_name[file_form(file.name)].append(file)
                self._by_name[file_form(file.stem)].append(file)

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """Return the files with one of the suffixes."""
        return [file for file in self.files if file.suffix.lower() in suffixes]

    def contains(self, suffix: str, pattern: str) -> bool:
        """Return True if one of the first files with a suffix contains a pattern."""
        files = self.with_suffix(suffix)[:_SAMPLE]
        return any(re.search(pattern, excerpt(file), re.DOTALL) for file in files)

    def image(self, name: str, label_file: Path, one_each: bool = False) -> Path:
        """Return the image that a label file names. Raises DataError.

        Names may be URLs, paths of another machine with slashes or backslashes, or have no suffix.
        If several images match, the one that shares most folders with the name is returned, then
        the one that is nearest to the label file. With `one_each`, the file labels a single image,
        so the name may be empty or wrong if the image has the stem of the file.
        """
        path = _as_path(name)
        direct = Path(os.path.normpath(label_file.parent / path))
        if path and self.contains_path(direct) and direct.suffix.lower() in image_suffixes():
            return direct
        last = path.rpartition("/")[2]
        stem = label_file.stem if one_each else ""
        keys = (last, _UPLOAD_PREFIX.sub("", last, 1), os.path.splitext(last)[0], stem)
        for key in keys:
            if candidates := self._by_name.get(file_form(key)) if key else None:
                return _best(candidates, path, label_file)
        if file := next(filter(None, map(self._unsupported.get, map(file_form, keys))), None):
            raise NoImageError(f"{file}: has an unsupported format; convert it to PNG or TIFF")
        raise NoImageError(
            f"{label_file}: its image {name!r} is not in {self.image_root}. Name the folder of the "
            f"images with --images, or export the labels together with the images"
        )

    @cached_property
    def _unsupported(self) -> dict[str, Path]:
        """Files by stem that are neither images nor labels."""
        images = set(self.images)
        others = (file for file in self.files if file.suffix.lower() not in _LABELS)
        return {file_form(file.stem): file for file in others if file not in images}

    def locate(self, name: str, base: Path) -> Path | None:
        """Return the file or folder with a path; its first folders may be from another machine."""
        parts = [part for part in _as_path(name).split("/") if part not in ("", ".")]
        for start in range(len(parts) + 1):
            for folder in dict.fromkeys((base, self.root, self.image_root)):
                path = Path(os.path.normpath(folder.joinpath(*parts[start:])))
                if self.contains_path(path) and (parts[start:] or not parts):
                    return path
        return None

    def contains_path(self, path: Path) -> bool:
        """Return True if a path exists in the folders of the dataset, see `is_inside`."""
        folders = {self.root, self.image_root}
        if self.root.name.lower() in _LABEL_FOLDERS:  # images are next to it
            folders.add(self.root.parent)
        return path.exists() and any(is_inside(path, folder) for folder in folders)

    def has_other_image(self, label_file: Path, image: Path) -> bool:
        """Return True if there is another image with the name of the label file of `image`."""
        key = file_form(label_file.stem)
        return key not in map(file_form, (image.stem, image.name)) and key in self._by_name

    def split_of(self, *files: Path) -> str | None:
        """Return "train", "val" or "test", or UNLISTED, of an image and its label file, or None.

        Lists of names decide, otherwise names of folders, such as train2017.
        """
        splits, _ = self.lists
        if splits:
            return next((splits[key] for key in map(_stem_key, files) if key in splits), UNLISTED)
        inside = [file.relative_to(self.root) for file in files if file.is_relative_to(self.root)]
        names = (
            re.sub(r"[\W\d_]+$", "", name.lower()) for file in inside for name in file.parts[:-1]
        )
        return next((SPLITS[name] for name in names if name in SPLITS), None)

    @cached_property
    def lists(self) -> tuple[dict[str, str], list[str]]:
        """The split of each file by `_stem_key`, and the problems of names that no file has.

        The lists train.txt, val.txt, ... are in ImageSets/Main or ImageSets/Segmentation, as in
        VOC, or in `root`. Each line is a name or path, possibly followed by other words.
        """
        texts = [file for file in self.with_suffix(".txt") if file.stem.lower() in SPLITS]
        known = {_stem_key(file) for file in (*self.files, *self.images)} if texts else set()
        for folder in ("Main", "Segmentation", self.root.name):
            files = [file for file in texts if file.parent.name == folder]
            splits, problems = dict[str, str](), list[str]()
            # trainval.txt comes first, so that train.txt and val.txt override it.
            for file in sorted(files, key=lambda file: file.stem.lower() != "trainval"):
                split = SPLITS[file.stem.lower()]
                for line in filter(None, map(str.strip, read_lines(file))):
                    keys = [_stem_key(Path(_as_path(name))) for name in (line, line.split()[0])]
                    if found := [key for key in keys if key in known]:
                        splits[found[0]] = split
                    elif split != "test" and not line.startswith("#"):
                        problems.append(f"{file}: lists {line}, but no file has this name")
            if "train" in splits.values():
                return splits, problems
        return {}, []


def _list_files(folder: Path) -> list[Path]:
    """List the files of a dataset, without drawings and the files that detlite has written."""

    def is_written(path: Path) -> bool:
        if path.name.lower() in _DRAWINGS or path == folder / OUTPUT_FOLDER:
            return True
        return _is_run(path) or (bool(_RESULTS.fullmatch(path.name)) and _is_run(path.parent))

    return list_files(folder, is_written)


def _is_run(folder: Path) -> bool:
    """Return True if `detlite train` or `detlite predict` has written its files to a folder."""
    if (folder / METRICS_FILE).exists():
        return True
    return (folder / "images.json").exists() and any(folder.glob("results.*"))


def excerpt(file: Path) -> str:
    """Return the text at the start and at the end of a file, in any encoding. Raises DataError."""
    try:
        with open_file(file) as stream:
            head = stream.read(_HEAD)
            stream.seek(max(os.path.getsize(file) - _HEAD, len(head)))
            data = head + stream.read()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    return data.decode(json.detect_encoding(data), "replace")


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file. Raises DataError."""
    try:
        return read_text(file, _MAX_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text in UTF-8: {error}") from error


def read_xml(file: Path) -> ET.Element:
    """Return the root of an XML file. Raises DataError."""
    try:
        return ET.fromstring(read_file(file, _MAX_BYTES))
    except (OSError, ET.ParseError) as error:
        raise DataError(f"{file}: cannot be read as XML: {error}") from error


def _stem_key(file: Path) -> str:
    """Return the key of a file name without the suffix of an image or a label file."""
    return file_form(file.stem if file.suffix.lower() in image_suffixes() | _LABELS else file.name)


def _as_path(name: str) -> str:
    """Return a path with slashes. For a URL, it is the URL's path, or the path after `?d=` in the
    URLs of Label Studio's local files."""
    text = name.strip().replace("\\", "/")
    if "?d=" in text:
        text = unquote(text.partition("?d=")[2])
    return text.partition("?")[0] if "://" in text else text


def _best(candidates: Iterable[Path], name: str, label_file: Path) -> Path:
    """Return the candidate that shares most of the last folders of a name, then the nearest one."""
    folders = [file_form(part) for part in name.split("/")[-2::-1]]

    def rank(file: Path) -> tuple[int, int]:
        parents = [file_form(part) for part in file.parts[-2::-1]]
        same = sum(folders[:count] == parents[:count] for count in range(1, len(folders) + 1))
        common = Path(os.path.commonpath([file, label_file.parent])).parts
        return same, 2 * len(common) - len(file.parts)

    ranked = sorted(candidates, key=rank, reverse=True)
    if len(ranked) > 1 and rank(ranked[0]) == rank(ranked[1]):
        raise DataError(
            f"{label_file}: {name.rpartition('/')[2] or ranked[0].stem} is ambiguous: "
            f"{ranked[0]} or {ranked[1]}; remove one"
        )
    return ranked[0]
