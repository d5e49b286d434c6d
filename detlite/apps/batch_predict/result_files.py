"""Files of detections: a journal of entries, and COCO results, CSV or Parquet made from it.

An entry is a dict {"image": {"id", "file_name", "height", "width"}, "objects": COCO results}, or
{"image": {"id", "file_name"}, "problem": text} for an unreadable image.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from detlite.atomic_write import atomic_open, atomic_path
from detlite.config import ConfigError
from detlite.evaluation.results import BACKGROUND_CATEGORY

from .measures import MEASURES

Entry = dict[str, Any]

SUFFIXES = {"coco": ".json", "csv": ".csv", "measures": ".csv", "parquet": ".parquet"}
JOINED = ("coco", "csv", "measures")  # formats with a single file; Parquet is read by the folder

# Columns of CSV and Parquet with their Parquet types. x, y, width and height are the box in pixels,
# mask the `counts` of a COCO RLE of the image's size, keypoints x, y, v of each keypoint, and
# track_id the id of an object that is tracked through a video.
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
_LONG = ("mask", "keypoints")  # columns that are not part of measures
_ROWS_PER_GROUP = 10_000  # a Parquet row group is held in memory


class Journal:
    """A file with a line of JSON for each entry, which survives any kind of interruption.

    Args:
        file: the file to create, or to continue after its last complete line.

    Attributes:
        count: number of entries when the file was opened.
    """

    def __init__(self, file: Path) -> None:
        self.count = _truncate_incomplete(file)
        # Line buffering hands each line to the system, so that it outlives the process.
        self._stream = file.open("a", encoding="utf-8", buffering=1)

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self._stream.write(json.dumps(entry) + "\n")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def read_journal(file: Path) -> Iterator[Entry]:
    """Yield the entries of a journal."""
    with file.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def category_names(categories: Iterable[Entry]) -> dict[int, str]:
    """Return category names by id, with the background, which some models detect."""
    return {category["id"]: category["name"] for category in (BACKGROUND_CATEGORY, *categories)}


def check_format(format: str) -> None:
    """Raise a ConfigError if the library of a format is not installed."""
    if format == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"--format parquet needs pyarrow ({error}): pip install 'detlite[parquet]'"
            ) from error


def write_detections(
    format: str, file: Path, entries: Iterable[Entry], names: Mapping[int, str]
) -> None:
    """Write the detections of entries atomically, with one entry in memory at a time.

    Args:
        format: a key of SUFFIXES.
        file: the file to write.
        entries: the entries.
        names: category names by id.
    """
    if format == "parquet":
        return _write_parquet(file, to_rows(entries, names))
    with atomic_open(file) as stream:
        if format == "measures":
            _write_measures(stream, entries, names)
        elif format == "csv":
            writer = csv.DictWriter(stream, list(COLUMNS), lineterminator="\n")
            writer.writeheader()
            for row in to_rows(entries, names):
                keypoints = row["keypoints"]
                writer.writerow(row | {"keypoints": keypoints and " ".join(map(str, keypoints))})
        else:
            objects = (json.dumps(obj) for entry in entries for obj in entry.get("objects", ()))
            stream.writelines(_json_list(objects))
    return None


def join(format: str, parts: Sequence[Path], file: Path) -> None:
    """Join files of `write_detections` into one."""
    with atomic_open(file) as stream:
        if SUFFIXES[format] == ".csv":
            headers = (part.read_text(encoding="utf-8").partition("\n")[0] for part in parts)
            # Without any object, the number of channels is unknown.
            stream.write(max(headers, key=len) + "\n")
            for part in parts:
                with part.open(encoding="utf-8", newline="") as lines:
                    stream.writelines(islice(lines, 1, None))
        else:
            texts = (part.read_text(encoding="utf-8")[1:-1] for part in parts)
            stream.writelines(_json_list(filter(None, texts)))


def write_images(file: Path, images: Iterable[Entry], categories: Sequence[Entry]) -> None:
    """Write a COCO file without annotations, for `COCO(file).loadRes(results)`."""
    with atomic_open(file) as stream:
        stream.write('{"info": {}, "annotations": [], "images": [')
        for number, image in enumerate(images):
            stream.write((",\n" if number else "\n") + json.dumps(image))
        stream.write(f'], "categories": {json.dumps(list(categories))}}}\n')


def to_rows(entries: Iterable[Entry], names: Mapping[int, str]) -> Iterator[Entry]:
    """Yield the detections of entries as rows with the keys of COLUMNS."""
    for entry in entries:
        image = entry["image"]
        for obj in entry.get("objects", ()):
            mask = obj.get("segmentation")
            # File names are bytes, which may not be valid UTF-8.
            name = image["file_name"].encode(errors="surrogateescape").decode(errors="replace")
            values = (
                image["id"], name, image["height"], image["width"],
                obj["category_id"], names[obj["category_id"]], obj["score"], *obj["bbox"],
                mask and mask["counts"], obj.get("keypoints"), obj.get("track_id"),
            )  # fmt: skip
            yield dict(zip(COLUMNS, values, strict=True))


def parquet_schema() -> Any:
    """Return COLUMNS as a schema of pyarrow."""
    import pyarrow as pa

    types = {"list<float32>": pa.list_(pa.float32())}
    return pa.schema([(n, types.get(t) or pa.type_for_alias(t)) for n, t in COLUMNS.items()])


def _write_measures(stream: Any, entries: Iterable[Entry], names: Mapping[int, str]) -> None:
    """Write a row for each object, with the number that it has in a label image."""
    rows = (
        {"label": number, **row, **obj.get("measures", {})}
        for entry in entries
        for number, (obj, row) in enumerate(
            zip(entry.get("objects", ()), to_rows([entry], names), strict=True), start=1
        )
    )
    first = next(rows, None)
    names_in_order = ("image_id", "file_name", "label", *COLUMNS, *MEASURES, *(first or ()))
    columns = [name for name in dict.fromkeys(names_in_order) if name not in _LONG]
    writer = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows if first is None else chain([first], rows))


def _write_parquet(file: Path, rows: Iterator[Entry]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = parquet_schema()
    with atomic_path(file) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))


def _json_list(items: Iterable[str]) -> Iterator[str]:
    """Yield the text of a JSON list piece by piece."""
    separator = "["
    for item in items:
        yield separator + item
        separator = ", "
    yield "[]" if separator == "[" else "]"


def _truncate_incomplete(file: Path) -> int:
    """Return the number of complete lines of a journal, and remove what follows them."""
    count = end = 0
    if file.exists():
        with file.open("rb") as stream:
            for line in stream:
                try:
                    json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                count, end = count + 1, end + len(line)
        os.truncate(file, end)
    return count
