"""Read YOLO's text files, one line for each object (https://docs.ultralytics.com/datasets).

A `data.yaml` names the categories and the image folders. The objects of an image `images/.../a.jpg`
are in `labels/.../a.txt`, or in `a.txt` next to it. A line is `category x y width height` with the
center of the box, or a polygon `category x1 y1 x2 y2 x3 y3 ...`, as fractions of the image size.
"""

from pathlib import Path
from typing import Any

from detlite.config import ConfigError, parse_yaml
from detlite.data.errors import DataError, short_repr
from detlite.data.loading.image_io import image_size

from .labeled_dataset import (
    LabeledDataset,
    LabeledImage,
    LabeledObject,
    images_under,
    object_from_corners,
    read_lines,
)

_TOLERANCE = 0.01  # rounding may move a coordinate this far out of the image
_NAME_FILES = ("classes.txt", "labels/classes.txt")  # LabelImg writes them instead of data.yaml


def is_yolo(folder: Path) -> bool:
    """Return True if a folder has a YAML file with names, or a classes.txt."""
    return _find_yaml(folder) is not None or _find_names(folder) is not None


def read_yolo(folder: Path) -> dict[str, LabeledDataset]:
    """Read "train", and "val" if data.yaml lists it. Images without a text file have no objects.

    Raises:
        DataError: a file or line is invalid.
    """
    file = _find_yaml(folder)
    if file is None:
        file = _find_names(folder)
        assert file is not None
        names = [line.strip() for line in read_lines(file) if line.strip()]
        return {"train": _read_images(file, images_under(folder), names)}
    content = _read_yaml(file)
    names = _category_names(content, file)
    if content.get("kpt_shape"):
        raise DataError(
            f"{file}: has kpt_shape, but keypoints in YOLO's format are not supported: export the "
            "dataset as COCO json"
        )
    base = file.parent / str(content.get("path") or "")
    if not base.is_dir():
        base = file.parent  # `path` may be relative to a folder of another program
    if not content.get("train"):
        return {"train": _read_images(file, images_under(base), names)}
    return {
        split: _read_images(file, _list_images(content[split], base, file, split), names)
        for split in ("train", "val")
        if content.get(split)
    }


def _find_yaml(folder: Path) -> Path | None:
    """Return the YAML file with the names of the categories."""
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            content = _read_yaml(file)
        except DataError:
            if file.stem in ("data", "dataset"):
                raise
            continue
        if "names" in content:
            return file
    return None


def _find_names(folder: Path) -> Path | None:
    return next((folder / name for name in _NAME_FILES if (folder / name).is_file()), None)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = parse_yaml("\n".join(read_lines(file)), file)
    except ConfigError as error:
        raise DataError(str(error)) from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: contains a {type(content).__name__} instead of keys and values")
    return content


def _category_names(content: dict[str, Any], file: Path) -> list[str]:
    """Return the category names of a list or of a mapping {0: name, ...}."""
    names = content["names"]
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise DataError(
            f"{file}: names is {short_repr(names)}, not a list or a mapping {{0: name, ...}}"
        )
    names = [str(name) for name in names]
    if len(set(names)) < len(names):
        raise DataError(f"{file}: names contains a duplicate: {short_repr(names)}")
    if content.get("nc", len(names)) != len(names):
        raise DataError(f"{file}: nc is {content['nc']}, but there are {len(names)} names")
    return names


def _list_images(value: Any, base: Path, file: Path, split: str) -> list[Path]:
    """List the images of an entry of data.yaml: folders, or text files with paths."""
    images: list[Path] = []
    for entry in value if isinstance(value, list) else [value]:
        path = base / str(entry)
        # Some exports write ../train/images although data.yaml is next to train.
        if not path.exists() and str(entry).startswith("../"):
            path = base / str(entry)[3:]
        if path.is_dir():
            images += images_under(path)
        elif path.is_file():
            images += [path.parent / line.strip() for line in read_lines(path) if line.strip()]
        else:
            raise DataError(f"{file}: {split} is {short_repr(entry)}, but {path} does not exist")
    if not images:
        raise DataError(f"{file}: {split} is {short_repr(value)}, which contains no images")
    return list(dict.fromkeys(images))


def _read_images(source: Path, files: list[Path], names: list[str]) -> LabeledDataset:
    images, any_labels = [], False
    for file in files:
        labels = next((path for path in _label_files(file) if path.is_file()), None)
        size = image_size(file)
        objects = []
        for number, line in enumerate(read_lines(labels) if labels else [], start=1):
            if line.strip():
                objects.append(_read_object(line.split(), size, names, f"{labels}, line {number}"))
        images.append(LabeledImage(file, size, objects))
        any_labels |= labels is not None
    if not any_labels:
        example = f" (such as {_label_files(files[0])[0]} for {files[0]})" if files else ""
        raise DataError(f"{source}: none of {len(files)} images has a text file{example}")
    return LabeledDataset(source, images, names)


def _label_files(image: Path) -> list[Path]:
    """Return the possible text files of an image: under `labels`, or next to it."""
    sibling = image.with_suffix(".txt")
    parts = list(sibling.parts)
    positions = [index for index, part in enumerate(parts[:-1]) if part == "images"]
    if not positions:
        return [sibling]
    parts[positions[-1]] = "labels"
    return [Path(*parts), sibling]


def _read_object(
    fields: list[str], size: tuple[int, int], names: list[str], where: str
) -> LabeledObject:
    try:
        number, values = int(fields[0]), [float(field) for field in fields[1:]]
    except ValueError as error:
        raise DataError(f"{where}: needs a category number and fractions ({error})") from error
    if not 0 <= number < len(names):
        raise DataError(f"{where}: category {number} must be in 0..{len(names) - 1}")
    is_box = len(values) == 4
    if not is_box and (len(values) < 6 or len(values) % 2):
        raise DataError(
            f"{where}: has {len(values)} numbers after the category: a box needs 4, and a polygon "
            "x and y of at least three points"
        )
    for value in values:
        if not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            raise DataError(
                f"{where}: {value:g} is not between 0 and 1: coordinates must be fractions of the "
                "image size"
            )
    if is_box:
        x, y, w, h = values
        values = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    height, width = size
    corners = [value * (height if index % 2 else width) for index, value in enumerate(values)]
    return object_from_corners(names[number], corners, size, where, polygon=not is_box)
