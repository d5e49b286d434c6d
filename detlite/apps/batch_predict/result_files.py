"""Files of detections: a journal of entries, and COCO results, CSV or Parquet written from it.

An entry is a dict {"image": {"id", "file_name", "height", "width"}, "objects": COCO results}, or
{"image": {"id", "file_name"}, "problem": text} for an unreadable image. COCO results are joined
from the text of journals, so the lines of a journal have the keys in this order and the separators
of `json.dumps`.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from detlite.apps.optional_packages import import_optional
from detlite.evaluation.detection_results import BACKGROUND_CATEGORY
from detlite.files.atomic_write import atomic_open, atomic_path, open_to_append
from detlite.files.errors import DataError
from detlite.files.reading import check_regular, open_text

from .measures import MEASURES, cell_text, write_summary

Entry = dict[str, Any]

SUFFIXES = {"coco": ".json", "csv": ".csv", "measures": ".csv", "parquet": ".parquet"}

# Columns of CSV and Parquet with their Parquet types. x, y, width and height are the box in pixels,
# mask the `counts` of a COCO RLE of the image's size, area its number of pixels, rotated_box its
# smallest rectangle (see `structures.masks.rotated_box`), keypoints x, y, v of each keypoint, and
# track_id the id of an object tracked through a video.
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
    "area": "int64",
    "rotated_box": "list<float32>",
    "keypoints": "list<float32>",
    "track_id": "int64",
}
_LISTS = ("rotated_box", "keypoints")  # columns with several numbers
_LONG = ("mask", "keypoints")  # columns that are not part of measures
_IMAGE, _END = '{"image": ', "]}\n"  # start and end of a line of a journal
_ROWS_PER_GROUP = 10_000  # a Parquet row group is held in memory


class Journal:
    """A file with a line of JSON for each entry, which survives any kind of interruption.

    Opening it continues after the last complete line; `count` is the number of lines then.
    """

    def __init__(self, file: Path) -> None:
        self.count = end = 0
        if file.exists():
            check_regular(file)
        self._stream = open_to_append(file)
        self._stream.seek(0)
        with suppress(ValueError):  # the last line is incomplete
            for line in self._stream:
                json.loads(line)
                if not line.endswith(b"\n"):
                    break
                self.count, end = self.count + 1, end + len(line)
        self._stream.truncate(end)

    def add(self, entry: Entry) -> None:
        """Append an entry and flush it, so that it survives the end of the process.

        `_journal_texts` depends on the format of the lines.
        """
        self._stream.write(json.dumps(entry).encode() + b"\n")
        self._stream.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._stream.fileno())  # the lines also survive a power failure now
        self._stream.close()


def read_journal(*files: Path) -> Iterator[Entry]:
    """Yield the entries of journals. Raises DataError for a damaged line."""
    for file in files:
        with open_text(file) as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    entry = json.loads(line)
                except ValueError as error:
                    raise _damaged(file, number) from error
                yield entry


def _journal_texts(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield the JSON of images and objects without parsing them, which takes ten times as long.

    Quotes in strings are escaped, so the text before the objects is unique in a line. Raises a
    DataError for a damaged line.
    """
    for file in files:
        with open_text(file) as stream:
            for number, line in enumerate(stream, start=1):
                image, key, objects = line.partition(', "objects": [')
                if key and image.startswith(_IMAGE) and objects.endswith(_END):
                    yield image.removeprefix(_IMAGE), objects.removesuffix(_END)
                elif key or ', "problem": "' not in line:
                    raise _damaged(file, number)


def _damaged(file: Path, number: int) -> DataError:
    return DataError(
        f"{file}: line {number} is damaged. Remove the file, and run the command again to predict "
        "its images"
    )


def category_names(categories: Iterable[Entry]) -> dict[int, str]:
    """Return category names by id, with the background, which some models detect."""
    return {category["id"]: category["name"] for category in (BACKGROUND_CATEGORY, *categories)}


def check_format(format: str) -> None:
    """Raise a ConfigError if the library of a format is not installed."""
    if format == "parquet":
        import_optional("pyarrow.parquet", "detlite[parquet]")


def write_results(
    folder: Path, format: str, journals: Sequence[Path], categories: Sequence[Entry]
) -> None:
    """Write the detections of journals to `results.*`, and before it the files about the images."""
    names = category_names(categories)
    with atomic_open(folder / "images.json") as stream:  # for `COCO(file).loadRes(results)`
        images = (image for image, _ in _journal_texts(journals))
        _write_list(stream, '{"info": {}, "annotations": [], "images": [\n', images, ",\n")
        stream.write(f'], "categories": {json.dumps(list(categories))}}}\n')
    if format in ("csv", "measures"):
        columns = [category["name"] for category in categories]
        write_summary(folder / "summary.csv", read_journal(*journals), names, columns)
    results = folder / f"results{SUFFIXES[format]}"
    if format != "coco":
        return write_detections(format, results, read_journal(*journals), names)
    with atomic_open(results) as stream:
        objects = filter(None, (objects for _, objects in _journal_texts(journals)))
        _write_list(stream, "[", objects, ", ")
        stream.write("]")
    return None


def write_detections(
    format: str, file: Path, entries: Iterable[Entry], names: Mapping[int, str]
) -> None:
    """Write the detections of entries atomically, with one entry in memory at a time.

    `format` is csv, measures or parquet; `names` are the category names by id.
    """
    if format == "parquet":
        return _write_parquet(file, to_rows(entries, names))
    with atomic_open(file) as stream:
        _write_csv(stream, to_rows(entries, names), format == "measures")
    return None


def _write_list(stream: Any, start: str, texts: Iterator[str], separator: str) -> None:
    stream.writelines(chain([start, next(texts, "")], (separator + text for text in texts)))


def _write_csv(stream: Any, rows: Iterator[Entry], measured: bool) -> None:
    first = list(islice(rows, 1))  # has the columns of its channels
    columns = list(COLUMNS)
    if measured:
        names = chain(("image_id", "file_name", "label"), COLUMNS, MEASURES, *first)
        columns = [name for name in dict.fromkeys(names) if name not in _LONG]
    writer = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in chain(first, rows):
        texts = {name: cell_text(row[name]) for name in ("file_name", "category")}
        lists = {name: row[name] and " ".join(map(str, row[name])) for name in _LISTS}
        writer.writerow(row | texts | lists)


def to_rows(entries: Iterable[Entry], names: Mapping[int, str]) -> Iterator[Entry]:
    """Yield the detections of entries as rows with the keys of COLUMNS, label and its measures.

    The label is the number that an object has in a label image.
    """
    for entry in entries:
        image = entry["image"]
        for label, obj in enumerate(entry.get("objects", ()), start=1):
            mask = obj.get("segmentation")
            optional = ("area", "rotated_box", "keypoints", "track_id")
            # File names are bytes, which may not be valid UTF-8.
            name = image["file_name"].encode(errors="surrogateescape").decode(errors="replace")
            values = (
                image["id"], name, image["height"], image["width"],
                obj["category_id"], names[obj["category_id"]], obj["score"], *obj["bbox"],
                mask and mask["counts"], *map(obj.get, optional),
            )  # fmt: skip
            row = dict(zip(COLUMNS, values, strict=True))
            yield row | {"label": label} | obj.get("measures", {})


def parquet_schema() -> Any:
    """Return COLUMNS as a schema of pyarrow."""
    import pyarrow as pa

    types = {"list<float32>": pa.list_(pa.float32())}
    return pa.schema([(n, types.get(t) or pa.type_for_alias(t)) for n, t in COLUMNS.items()])


def _write_parquet(file: Path, rows: Iterator[Entry]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = parquet_schema()
    with atomic_path(file) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))
