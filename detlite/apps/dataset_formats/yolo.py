"""Read YOLO's text files, one line for each object (https://docs.ultralytics.com/datasets).

A `data.yaml` names the categories and the image folders. Darknet and CVAT write `obj.names` and
`obj.data` instead, LabelImg and Label Studio `classes.txt`, and Roboflow `_darknet.labels`. The
objects of an image `images/.../a.jpg` are in `labels/.../a.txt`, or in `a.txt` next to it. A line
is `category x y width height` with the center of the box, maybe followed by a score or keypoints,
or a polygon `category x1 y1 x2 y2 x3 y3 ...`, as fractions of the image size.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from detlite.config import ConfigError, parse_yaml
from detlite.data.annotations.ids import parse_number
from detlite.files.errors import DataError, short_repr

from .file_tree import SPLITS, UNLISTED, FileTree, read_lines
from .labeled_dataset import Conversion, LabeledDataset, LabeledImage
from .shapes import Shape, check_size, to_objects, unused_images

_TOLERANCE = 0.01  # accepted distance of rounded coordinates from the image, as a fraction
_YAML = (".yaml", ".yml")
_NAME_FILES = re.compile(r"classes\.txt|.*\.names|_darknet\.labels")
_ANGLE = (
    "its sixth number seems to be the angle of a rotated box: export it as four corners "
    "`category x1 y1 x2 y2 x3 y3 x4 y4` in fractions, which are read"
)
_SIXTH = "Scores and track numbers are not used. If they are angles, export four corners instead."
_MAX_CATEGORIES, _MAX_POINTS = 100_000, 1000
# Reads all values as texts.
_TEXT_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_LABEL_LINE = re.compile(r"\s*\d+(\.0+)?(\s+[-+.\deE]+){4,}\s*$")


@dataclass(frozen=True)
class _LabelInfo:
    """The names of categories and keypoints, and the values of a keypoint; 2: no visibility."""

    names: Sequence[str]
    keypoints: Sequence[str] = ()
    dimensions: int = 3


def is_yolo(tree: FileTree, named: bool = True) -> bool:
    """Return True if a file names the categories; without `named`, labels alone are enough."""
    source, _ = next(_sources(tree), (None, None))
    return source is not None and not (named and source == tree.root)


def read_yolo(tree: FileTree, conversion: Conversion) -> LabeledDataset:
    """Read all images, or those listed in data.yaml or obj.data. Some may have no text file."""
    file, content = _description(tree, conversion)
    labels = _read_keypoints(content, file)
    base = tree.locate(str(content.get("path") or "."), file.parent) or file.parent
    splits: dict[str | None, list[Path]] = {}
    for key, value in content.items():
        split = SPLITS.get(str(key).lower())
        if split and value and (split != "test" or tree.locate(str(value), base)):
            splits[split] = _list_images(value, base, tree, file, key, conversion)
    listed = [(image, split) for split, images in splits.items() for image in images]
    if "train" not in splits:
        listed = [(image, tree.split_of(image)) for image in tree.images]
    trained = [image for image, split in listed if split != "val"]
    if trained and not any(map(_text_file, trained)):
        example = f"such as {_label_files(trained[0])[0]} for {trained[0]}"
        raise DataError(f"{file}: none of {len(trained)} images has a text file ({example})")
    labeled, owners = [], dict[Path, Path]()
    conversion.findings.assign(None)
    for image, split in listed:
        with conversion.collect():
            text_file = _text_file(image)
            size = check_size(image, (0, 0), text_file, conversion)
            if text_file is None and (other := image.with_suffix(".xml")).is_file():
                raise DataError(f"{other}: the labels of other images are text files; convert one")
            shapes = _read_shapes(text_file, size, labels, conversion)
            objects = to_objects(shapes, size, str(text_file), conversion)
            labeled.append(LabeledImage(image, size, objects, split))
            if text_file and owners.setdefault(text_file, image) != image:
                text = "Each has all of its objects. Rename one, or delete it if they are copies."
                conversion.findings.add("images that share a label file", text, str(image), "image")
            conversion.findings.assign(image)
    labeled += unused_images(tree, {image for image, _ in listed}, UNLISTED)
    used = set(filter(None, map(_text_file, tree.images)))
    folders = {path.parent for path in used}
    for path in tree.with_suffix(".txt"):
        is_other = path.parent in folders and path not in used
        if is_other and any(map(_LABEL_LINE.match, read_lines(path))):
            what, effect = "label files without an image", "They are not used."
            conversion.findings.add(what, effect, str(path), "file")
    flip_idx = content.get("flip_idx")
    return LabeledDataset(file, labeled, labels.names, labels.keypoints, flip_idx)


def _description(tree: FileTree, conversion: Conversion) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the dataset, and its content with the names of categories.

    Raises DataError if files name different categories.
    """
    sources = list(_sources(tree))
    file, content = sources[0]
    named = [
        (path, _category_names(keys["names"], path))
        for path, keys in sources
        # Deeper YAML files may belong to code.
        if keys.get("names") and (path.suffix not in _YAML or len(path.parts) <= len(file.parts))
    ]
    if not named:
        lines = filter(_LABEL_LINE.match, _all_lines(tree))
        numbers = [int(float(line.split()[0])) for line in lines]
        count = content["nc"] if type(content.get("nc")) is int else max(numbers, default=0) + 1
        if count > _MAX_CATEGORIES:
            raise DataError(f"{file}: has {count} categories, more than {_MAX_CATEGORIES}")
        named = [(file, [str(number) for number in range(count)])]
        text = "Add `names` to data.yaml, or a classes.txt with a name per line."
        conversion.findings.add("categories without names are numbered", text, str(file), "file")
    (first, names), *others = named
    for other, own in others:
        if own != names:
            raise DataError(f"{other}: its names differ from those of {first}: remove one of them")
    if str(content.get("nc", len(names))) != str(len(names)):
        raise DataError(f"{file}: nc is {content['nc']}, but there are {len(names)} names")
    return file, content | {"names": names}


def _read_keypoints(content: dict[str, Any], file: Path) -> _LabelInfo:
    """Return the meaning of labels by `names`, `kpt_shape` and `kpt_names`. Raises DataError."""
    shape = content.get("kpt_shape") or [0, 3]
    is_pair = isinstance(shape, list) and len(shape) == 2 and type(shape[0]) is int
    if not (is_pair and 0 <= shape[0] <= _MAX_POINTS and shape[1] in (2, 3)):
        raise DataError(f"{file}: kpt_shape is {short_repr(shape)}, not [number of points, 2 or 3]")
    count, dimensions = shape
    points = content.get("kpt_names") or [f"keypoint {number + 1}" for number in range(count)]
    if isinstance(points, dict):  # ultralytics: for each category
        points = next(iter(points.values()))
    if not isinstance(points, list):
        raise DataError(f"{file}: kpt_names is {short_repr(points)}, not a list of names")
    if len(points) != count:
        raise DataError(f"{file}: kpt_names has {len(points)} names, but kpt_shape {count} points")
    return _LabelInfo(content["names"], list(map(str, points)), dimensions)


def _sources(tree: FileTree) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each file that describes the dataset, and its content with the keys of data.yaml."""
    for file in _by_depth(tree.with_suffix(*_YAML)):
        try:
            text = "\n".join(read_lines(file))
            content = parse_yaml(text, file)
            if not isinstance(content, dict):
                kind = type(content).__name__
                raise DataError(f"{file}: contains a {kind} instead of keys and values")
        except (ConfigError, DataError) as error:
            if file.stem in ("data", "dataset"):
                raise DataError(str(error)) from error
            continue
        if "names" in content:  # as texts: otherwise, no is False and 007 is 7
            content["names"] = yaml.load(text, _TEXT_LOADER).get("names", content["names"])
        if "names" in content or {"nc", "train"} <= content.keys():
            yield file, content
    files = _by_depth([file for file in tree.files if _NAME_FILES.fullmatch(file.name)])
    if files and any(map(_text_file, tree.images)):
        content = {}
        for data in _by_depth(tree.with_suffix(".data"))[:1]:
            pairs = (line.partition("=") for line in read_lines(data))
            content |= {
                key.strip(): value.strip() for key, _, value in pairs if key.strip() in SPLITS
            }
        for file in files:
            names = list(filter(None, map(str.strip, read_lines(file))))
            yield file, content | {"names": names}
    other_formats = tree.with_suffix(".json", ".xml")
    if tree.data.is_dir() and not other_formats and any(map(_LABEL_LINE.match, _all_lines(tree))):
        yield tree.root, {}


def _by_depth(files: Sequence[Path]) -> list[Path]:
    return sorted(files, key=lambda file: (len(file.parts), file))


def _all_lines(tree: FileTree) -> Iterator[str]:
    """Yield the lines of the text files of images."""
    for file in filter(None, map(_text_file, tree.images)):
        yield from read_lines(file)


def _category_names(names: Any, file: Path) -> list[str]:
    """Return the category names, from a list or a mapping {0: name, ...}."""
    if isinstance(names, dict):
        numbered = {int(k) if str(k).isdecimal() else k: name for k, name in names.items()}
        if set(numbered) == set(range(len(names))):
            names = [numbered[number] for number in range(len(names))]
    if not isinstance(names, list):
        raise DataError(
            f"{file}: names is {short_repr(names)}, not a list or a mapping {{0: name, ...}}"
        )
    names = list(map(str, names))
    if len(set(names)) < len(names):
        raise DataError(f"{file}: names contains a duplicate: {short_repr(names)}")
    return names


def _list_images(
    value: Any, base: Path, tree: FileTree, file: Path, split: str, conversion: Conversion
) -> list[Path]:
    """List the images of an entry of data.yaml: folders, or text files with paths."""
    images: list[Path] = []
    for entry in value if isinstance(value, list) else [value]:
        direct = Path(os.path.normpath(base / str(entry)))
        # Some exports write ../train/images although data.yaml is next to train.
        path = direct if tree.contains_path(direct) else None
        path = path or tree.locate(str(entry).removeprefix("../"), base)
        if path is None:
            problem = f"is not in {tree.image_root}" if direct.exists() else "does not exist"
            raise DataError(
                f"{file}: {split} is {short_repr(entry)}, but {direct} {problem}. Correct "
                f"the path, or name the folder of the images with --images"
            )
        if path.is_dir():
            inside = path.is_relative_to(tree.image_root)
            found = (tree if inside else FileTree(path)).images
            images += [image for image in found if image.is_relative_to(path)]
        else:
            for line in filter(None, map(str.strip, read_lines(path))):
                with conversion.collect():
                    images.append(tree.image(line, path))
    if not images and not conversion.bad:
        problem = f"{split} is {short_repr(value)}, which contains no images of a supported format"
        raise DataError(f"{file}: {problem}")
    return list(dict.fromkeys(images))


def _text_file(image: Path) -> Path | None:
    return next((path for path in _label_files(image) if path.is_file()), None)


def _label_files(image: Path) -> list[Path]:
    """Return the possible text files of an image: in `labels`, or next to the image."""
    sibling = image.with_suffix(".txt")
    parts = sibling.parts
    positions = [index for index, part in enumerate(parts[:-1]) if part.lower() == "images"]
    at = positions[-1] if positions else len(parts) - 2
    files = [Path(*parts[:at], name, *parts[at + 1 :]) for name in ("labels", "Labels")]
    return [*files, sibling] if positions else [sibling, *files]


def _read_shapes(
    file: Path | None, size: tuple[int, int], labels: _LabelInfo, conversion: Conversion
) -> Iterator[Shape]:
    for number, line in enumerate(read_lines(file) if file else [], start=1):
        if fields := line.split():
            shape = Shape("", where=f", line {number}")
            try:
                _read_line(shape, fields, size, labels)
            except ValueError as error:
                shape.problem = str(error)
            if len(fields) == 6 and not shape.problem:
                example = f"{file}, line {number}"
                conversion.findings.add("a number after boxes", _SIXTH, example, "label line")
            yield shape


def _read_line(shape: Shape, fields: list[str], size: tuple[int, int], labels: _LabelInfo) -> None:
    """Set the category, the corners and the keypoints of a shape. Raises ValueError."""
    category = parse_number(fields[0])
    values = [number for number in map(parse_number, fields[1:]) if number is not None]
    if category is None or len(values) + 1 < len(fields):
        shape.corners = _corners(values, size) if len(values) == 4 else ()
        raise ValueError(f"needs a category number and fractions, not {short_repr(fields)}")
    points, sixth, step = list[float](), 0.0, labels.dimensions
    if labels.keypoints and len(values) == 4 + step * len(labels.keypoints):
        values, points = values[:4], values[4:]
    elif len(values) == 5:
        *values, sixth = values
    shape.polygon = len(values) != 4
    if shape.polygon and (len(values) < 6 or len(values) % 2):
        raise ValueError(
            f"has {len(values)} numbers after the category: a box needs 4, and a polygon x and y "
            "of at least three points"
        )
    shape.corners = _corners(values, size)
    if sixth < 0 or (sixth > 1 and not sixth.is_integer()):
        raise ValueError(_ANGLE)
    if category not in range(len(labels.names)):
        raise ValueError(f"category {category:g} must be in 0..{len(labels.names) - 1}")
    shape.category = labels.names[int(category)]
    triples = [(*points[k : k + step], *[2] * (3 - step)) for k in range(0, len(points), step)]
    for value in (*values, *(value for x, y, _ in triples for value in (x, y))):
        if not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            text = "is not between 0 and 1: coordinates must be fractions of the image size"
            raise ValueError(f"{value:g} {text}")
    if unknown := [visibility for *_, visibility in triples if visibility not in (0, 1, 2)]:
        raise ValueError(f"visibility {unknown[0]:g} is not 0, 1 or 2")
    height, width = size
    shape.keypoints = {
        # Without visibilities, (0, 0) is not labeled.
        name: (x * width, y * height, int(v if step == 3 else 2 * bool(x or y)))
        for name, (x, y, v) in zip(labels.keypoints, triples, strict=False)
    }


def _corners(values: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Return the corners in pixels of a box (x, y, w, h) around a center, or of a polygon."""
    if len(values) == 4:
        x, y, w, h = values
        values = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    height, width = size
    return [value * (height if k % 2 else width) for k, value in enumerate(values)]
