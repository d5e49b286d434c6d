"""Detections of many pictures in files: COCO results, CSV or Parquet, a shard after the other.

A done picture is a dict {"image": {"id", "file_name", "height", "width"}, "objects": COCO results}
or, where it could not be read, {"image": {"id", "file_name"}, "problem": text}.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from detlite.atomic_write import atomic_open, atomic_path
from detlite.config import ConfigError
from detlite.evaluation.results import BACKGROUND_CATEGORY

Entry = dict[str, Any]  # of a json file

SUFFIXES = {"coco": ".json", "csv": ".csv", "parquet": ".parquet"}
JOINED = ("coco", "csv")  # one file in the end; Parquet is read by the folder

# Of CSV and Parquet, and their Parquet types. x, y, width and height are the box in pixels; mask
# is the `counts` of a COCO RLE of the picture's size; keypoints are x, y, v of each; track_id is
# that of an object that is followed through a video.
COLUMNS = {
    "image_id": "int64",
    "file_name": "string",
    "image_height": "int32",
    "image_width": "int32",
    "category_id": "int64",
    "category": "string",
    "score": "float32",
    "x": "float32",
    "y": "float32",
    "width": "float32",
    "height": "float32",
    "mask": "string",
    "keypoints": "list<float32>",
    "track_id": "int64",
}
_ROWS = 10_000  # of a Parquet row group, which is held in memory


def category_names(categories: Iterable[Entry]) -> dict[int, str]:
    """The names of categories, and of the background, which some models detect, by id."""
    return {category["id"]: category["name"] for category in (BACKGROUND_CATEGORY, *categories)}


def check_format(form: str) -> None:
    """Raises a ConfigError where the library is missing that a format needs."""
    if form == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401  (looked for, not used)
        except ImportError as error:
            raise ConfigError(
                f"--format parquet needs pyarrow ({error}): pip install 'detlite[parquet]'"
            ) from error


def write_detections(
    form: str, file: Path, pictures: Iterable[Entry], names: Mapping[int, str]
) -> None:
    """Writes what was found in pictures, aside and renamed; they are held one at a time.

    Args:
        form: of `SUFFIXES`.
        names: of categories by id.
    """
    if form == "parquet":
        return _write_parquet(file, rows_of(pictures, names))
    with atomic_open(file) as stream:
        if form == "csv":
            writer = csv.DictWriter(stream, list(COLUMNS), lineterminator="\n")
            writer.writeheader()
            for row in rows_of(pictures, names):
                points = row["keypoints"]
                writer.writerow(row | {"keypoints": points and " ".join(map(str, points))})
            return None
        separator = "["
        for picture in pictures:
            for found in picture.get("objects", ()):
                stream.write(separator + json.dumps(found))
                separator = ", "
        stream.write("[]" if separator == "[" else "]")
    return None


def join(form: str, parts: Sequence[Path], file: Path) -> None:
    """Writes one file of what `write_detections` wrote, part by part."""
    with atomic_open(file) as stream:
        if form == "csv":
            for number, part in enumerate(parts):
                with part.open(encoding="utf-8", newline="") as lines:
                    stream.writelines(islice(lines, min(number, 1), None))
            return
        separator = "["
        for part in parts:
            text = part.read_text(encoding="utf-8")[1:-1]
            if text:
                stream.write(separator + text)
                separator = ", "
        stream.write("[]" if separator == "[" else "]")


def write_images(file: Path, images: Iterable[Entry], categories: Sequence[Entry]) -> None:
    """Writes a COCO file without annotations, for `COCO(file).loadRes(results)`."""
    with atomic_open(file) as stream:
        stream.write('{"info": {}, "annotations": [], "images": [')
        for number, image in enumerate(images):
            stream.write((",\n" if number else "\n") + json.dumps(image))
        stream.write(f'], "categories": {json.dumps(list(categories))}}}\n')


def rows_of(pictures: Iterable[Entry], names: Mapping[int, str]) -> Iterator[Entry]:
    """The objects in pictures by `COLUMNS`."""
    for picture in pictures:
        image = picture["image"]
        for found in picture.get("objects", ()):
            mask = found.get("segmentation")
            # Names of files are bytes, which need not be UTF-8.
            name = image["file_name"].encode(errors="surrogateescape").decode(errors="replace")
            values = (
                image["id"], name, image["height"], image["width"],
                found["category_id"], names[found["category_id"]], found["score"],
                *found["bbox"], mask and mask["counts"], found.get("keypoints"),
                found.get("track_id"),
            )  # fmt: skip
            yield dict(zip(COLUMNS, values, strict=True))


def parquet_schema() -> Any:
    """`COLUMNS` as pyarrow has them."""
    import pyarrow as pa

    types = {"list<float32>": pa.list_(pa.float32())}
    return pa.schema([(n, types.get(t) or pa.type_for_alias(t)) for n, t in COLUMNS.items()])


def _write_parquet(file: Path, rows: Iterator[Entry]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = parquet_schema()
    with atomic_path(file) as aside, pq.ParquetWriter(aside, schema) as writer:
        while group := list(islice(rows, _ROWS)):
            writer.write_table(pa.Table.from_pylist(group, schema))
