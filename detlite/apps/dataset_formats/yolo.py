"""YOLO's text files: a line of fractions for each object (https://docs.ultralytics.com/datasets).

A `data.yaml` names the categories and the folders of pictures; a picture `images/.../a.jpg` has its
objects in `labels/.../a.txt`, or in `a.txt` beside it. A line is `category x y width height`, of
the box's centre, or `category x1 y1 x2 y2 x3 y3 ...`, a polygon; all from 0 to 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detlite.config import ConfigError, parse_yaml
from detlite.data.errors import DataError, short_repr
from detlite.data.loading.image_io import image_size

from .labeled_dataset import (
    LabelledObject,
    LabelledPicture,
    LabelledSet,
    box_around,
    pictures_under,
)

_TOLERANCE = 0.01  # by which rounding may carry a coordinate out of the picture
_NAMES = "classes.txt"  # what LabelImg writes instead of data.yaml


def is_yolo(folder: Path) -> bool:
    """Whether a folder has a data.yaml, by whatever name, or a classes.txt."""
    return _find_yaml(folder) is not None or _find_names(folder) is not None


def read_yolo(folder: Path) -> dict[str, LabelledSet]:
    """A data set in YOLO's form: "train", and "val" where its data.yaml has it.

    A picture without a text file has no objects. Pictures of `test` are left alone.

    Raises:
        DataError: naming the file, and its line.
    """
    file = _find_yaml(folder)
    if file is None:
        names_file = _find_names(folder)
        assert names_file is not None
        names = [line.strip() for line in _lines(names_file) if line.strip()]
        return {"train": _read_set(names_file, pictures_under(folder), names)}
    content = _yaml(file)
    names = _names(content, file)
    if content.get("kpt_shape"):
        raise DataError(f"{file}: has kpt_shape: keypoints of YOLO are not read, only boxes and "
                        "polygons; export them as COCO json")  # fmt: skip
    base = file.parent / str(content.get("path") or "")
    if not base.is_dir():
        base = file.parent  # `path` may be relative to a folder of another program
    if not content.get("train"):
        return {"train": _read_set(file, pictures_under(base), names)}
    return {
        split: _read_set(file, _listed(content[split], base, file, split), names)
        for split in ("train", "val")
        if content.get(split)
    }


def _find_yaml(folder: Path) -> Path | None:
    """The YAML file with the names of categories."""
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            content = _yaml(file)
        except DataError:
            if file.stem in ("data", "dataset"):
                raise
            continue
        if "names" in content:
            return file
    return None


def _find_names(folder: Path) -> Path | None:
    for file in (folder / _NAMES, folder / "labels" / _NAMES):
        if file.is_file():
            return file
    return None


def _yaml(file: Path) -> dict[str, Any]:
    try:
        content = parse_yaml("\n".join(_lines(file)), file)
    except ConfigError as error:
        raise DataError(str(error)) from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: holds {type(content).__name__}, not keys and values")
    return content


def _names(content: dict[str, Any], file: Path) -> list[str]:
    """The categories by number, from a list or a mapping 0: name."""
    names = content["names"]
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise DataError(f"{file}: names is {short_repr(names)}, not a list, or a mapping from 0 on")
    given = [str(name) for name in names]
    if len(set(given)) < len(given):
        raise DataError(f"{file}: names has a name twice: {short_repr(given)}")
    if content.get("nc", len(given)) != len(given):
        raise DataError(f"{file}: nc is {content['nc']}, but names has {len(given)}")
    return given


def _listed(value: Any, base: Path, file: Path, split: str) -> list[Path]:
    """The pictures that an entry of data.yaml stands for: folders, or text files of paths."""
    found: list[Path] = []
    for part in value if isinstance(value, list) else [value]:
        place = base / str(part)
        # Some exports write ../train/images where data.yaml lies beside train.
        if not place.exists() and str(part).startswith("../"):
            place = base / str(part)[3:]
        if place.is_dir():
            found += pictures_under(place)
        elif place.is_file():
            found += [place.parent / line.strip() for line in _lines(place) if line.strip()]
        else:
            raise DataError(f"{file}: {split} is {short_repr(part)}, but there is no {place}")
    if not found:
        raise DataError(f"{file}: {split} is {short_repr(value)}, and there is no picture")
    return list(dict.fromkeys(found))


def _read_set(source: Path, files: list[Path], names: list[str]) -> LabelledSet:
    pictures = []
    for file in files:
        labels = _label_file(file)
        size = image_size(file)
        objects = []
        for number, line in enumerate(_lines(labels) if labels else [], start=1):
            if line.strip():
                objects.append(_object(line.split(), size, names, f"{labels}, line {number}"))
        pictures.append(LabelledPicture(file, size, objects))
    if not any(_label_file(file) for file in files):
        place = files[0] if files else source
        raise DataError(
            f"{source}: none of {len(files)} pictures has a text file: {place} is expected to "
            f"have {_label_files(place)[0]}"
        )
    return LabelledSet(source, pictures, names)


def _label_file(picture: Path) -> Path | None:
    return next((file for file in _label_files(picture) if file.is_file()), None)


def _label_files(picture: Path) -> list[Path]:
    """Where the objects of a picture may be: under labels instead of images, or beside it."""
    beside = picture.with_suffix(".txt")
    parts = list(beside.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part == "images"]
    if not places:
        return [beside]
    parts[places[-1]] = "labels"
    return [Path(*parts), beside]


def _object(
    fields: list[str], size: tuple[int, int], names: list[str], where: str
) -> LabelledObject:
    try:
        number, values = int(fields[0]), [float(field) for field in fields[1:]]
    except ValueError as error:
        raise DataError(f"{where}: {error}: a line holds a number and fractions") from error
    if not 0 <= number < len(names):
        raise DataError(f"{where}: category {number}, but there are {len(names)}, counted from 0")
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise DataError(
            f"{where}: has {len(values)} numbers after the category: a box has 4, a polygon x and "
            "y of three points or more"
        )
    wrong = next((v for v in values if not -_TOLERANCE <= v <= 1 + _TOLERANCE), None)
    if wrong is not None:
        raise DataError(
            f"{where}: {wrong:g} is not from 0 to 1: YOLO's coordinates are fractions of the "
            "picture's width and height"
        )
    height, width = size
    polygon = None
    if len(values) == 4:
        x, y, w, h = values
        corners = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    else:
        corners = values
    corners = [
        min(max(value, 0.0), 1.0) * (height if place % 2 else width)
        for place, value in enumerate(corners)
    ]
    if len(values) > 4:
        polygon = [corners]
    box = box_around([corners])
    if min(box[2:]) <= 0:
        raise DataError(
            f"{where}: has width {box[2]:g} and height {box[3]:g}: both must be positive"
        )
    return LabelledObject(names[number], box, polygon)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not text in UTF-8 ({error})") from error
