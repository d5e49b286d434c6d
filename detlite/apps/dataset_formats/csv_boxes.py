"""Read CSV files with a line for each box, as made for TensorFlow's Object Detection API or Kaggle.

The first line names the columns, such as `filename,width,height,class,xmin,ymin,xmax,ymax`,
`image_id,bbox` with boxes "[x, y, width, height]", or `image,x,y,width,height`. Coordinates are in
pixels. A line with an empty box says that an image has no objects.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from detlite.data.annotations.ids import parse_number
from detlite.files.errors import DataError, short_repr

from .file_tree import SPLITS, FileTree, excerpt, read_lines
from .labeled_dataset import Conversion
from .shapes import ImageLabels, Shape

# The names of columns, without spaces and _; the first one that a file has counts.
_COLUMNS = {
    "image": ("filename", "imageid", "image", "imagename", "imagepath", "filepath", "path", "img"),
    "category": ("class", "classname", "label", "labelname", "category", "categoryname", "name"),
    "xmin": ("xmin", "x1"), "ymin": ("ymin", "y1"), "xmax": ("xmax", "x2"), "ymax": ("ymax", "y2"),
    "bbox": ("bbox",), "x": ("x",), "y": ("y",), "width": ("width", "w"), "height": ("height", "h"),
}  # fmt: skip
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_BOXES = (_CORNERS, ("bbox",), ("x", "y", "width", "height"))  # columns of a box
_EMPTY = {"", "nan", "none", "null"}


def has_boxes(tree: FileTree) -> bool:
    """Return True if a CSV file has columns of boxes."""
    return any(_columns(excerpt(file).splitlines()) for file in tree.with_suffix(".csv"))


def csv_labels(file: Path, _: FileTree, __: Conversion) -> Iterator[ImageLabels]:
    """Yield the labels of all images of a file; nothing if it has no boxes. Raises DataError."""
    lines = read_lines(file)
    columns = _columns(lines)
    if not columns:
        return
    keys = next(keys for keys in _BOXES if columns.keys() >= {*keys})
    split = SPLITS.get(re.split(r"[\W\d_]+", file.stem.lower())[0])  # of train_labels.csv
    labels: dict[str, ImageLabels] = {}
    reader = csv.reader(lines[1:], delimiter=_delimiter(lines))
    try:
        for cells in reader:
            if not any(cells):
                continue
            row = {key: cells[n].strip() if n < len(cells) else "" for key, n in columns.items()}
            size = (row.get("height"), row.get("width")) if keys == _CORNERS else (0, 0)
            image = ImageLabels(row["image"], size=size, split=split)
            image = labels.setdefault(row["image"], image)
            texts = [row[key] for key in keys]
            if {text.lower() for text in texts} <= _EMPTY:
                continue
            shape = Shape(row.get("category", "object"), polygon=False)
            shape.where = f", line {reader.line_num + 1}"
            if keys == ("bbox",):
                texts = texts[0].strip("[]()").replace(",", " ").split()
            values = [value for value in map(parse_number, texts) if value is not None]
            if len(values) != 4 or len(texts) != 4:
                shape.problem = f"its box is {short_repr(texts)}, not four numbers"
            else:
                x, y, *far = values
                shape.corners = values if keys == _CORNERS else (x, y, x + far[0], y + far[1])
            image.shapes.append(shape)
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num + 1}: {error}") from error
    yield from labels.values()


def _columns(lines: list[str]) -> dict[str, int]:
    """Return the positions of the known columns; {} without an image or a box."""
    header = "".join(lines[:1]).split(_delimiter(lines))
    names = [re.sub(r"[\s_\"\ufeff]", "", name).lower() for name in header]
    found = {
        key: next(names.index(name) for name in known if name in names)
        for key, known in _COLUMNS.items()
        if {*known} & {*names}
    }
    is_known = "image" in found and any(found.keys() >= {*keys} for keys in _BOXES)
    return found if is_known else {}


def _delimiter(lines: list[str]) -> str:
    header = lines[0] if lines else ""
    return max(",;\t", key=header.count)
