"""Results of predictions: COCO results, CSV, measurements and Parquet.

All formats also write images.json, a COCO file of the images without annotations.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from detlite.files.atomic_write import atomic_open, atomic_path, make_folder
from detlite.structures.object_fields import own_values

from .measures import MEASURES
from .writer import FORMATS, Entry, PredictionWriter, write_list

# Columns of CSV and Parquet with their Parquet types. frame and time (in seconds) are those of a
# video, x, y, width and height the box in pixels,
# mask the `counts` of a COCO RLE of the image's size, area its number of pixels, rotated_box its
# smallest rectangle (see `structures.masks.rotated_box`), keypoints x, y, v of each keypoint,
# track_id the id of an object tracked through a video, and fields the own fields as JSON.
COLUMNS = {
    "image_id": "int64",
    "file_name": "string",
    "image_height": "int32",
    "image_width": "int32",
    "frame": "int64",
    "time": "double",
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
    "fields": "string",
}
_LISTS = ("rotated_box", "keypoints")  # columns with several numbers
_LONG = ("mask", "keypoints")  # columns that are not part of measures
_SUMMARY = ("image_id", "file_name", "image_height", "image_width", "frame", "time", "objects",
            "objects_per_megapixel", "mean_width", "mean_height", "area_fraction")  # fmt: skip
_ROWS_PER_GROUP = 10_000  # rows of a Parquet file that are in memory until they are written


class _Results(PredictionWriter):
    """Writes images.json, for `COCO("images.json").loadRes("results.json")`."""

    def write(self, entries: Iterable[Entry]) -> None:
        with atomic_open(self.folder / "images.json") as stream:
            stream.write('{"info": {}, "annotations": [], "images": ')
            write_list(stream, (entry["image"] for entry in entries))
            stream.write(f', "categories": {json.dumps(list(self.model.categories))}}}\n')

    def rows(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield a row for each object, see `to_rows`."""
        return (row for entry in entries for row in to_rows(entry, self.model.names))


@FORMATS.register("results")
class CocoResults(_Results):
    """Writes all objects as one list of COCO results."""

    outputs = ("results.json",)

    def write(self, entries: Iterable[Entry]) -> None:
        super().write(entries)
        with atomic_open(self.folder / "results.json") as stream:
            write_list(stream, (row for entry in entries for row in entry["objects"]))


@FORMATS.register("csv")
class CsvResults(_Results):
    """Writes a row for each object, and to summary.csv a row for each image.

    summary.csv has the number, density and size of the objects. The fraction of the area that masks
    cover is empty without measures.
    """

    outputs = ("results.csv", "summary.csv")

    @property
    def columns(self) -> list[str]:
        return list(COLUMNS)

    def write(self, entries: Iterable[Entry]) -> None:
        super().write(entries)
        categories = [cell_text(row["name"]) for row in self.model.categories]
        cells = (_cells(row, self.columns) for row in self.rows(entries))
        for name, header, rows in (
            ("results.csv", self.columns, cells),
            ("summary.csv", [*_SUMMARY, *categories], map(self._summary, entries)),
        ):
            with atomic_open(self.folder / name) as stream:
                csv.writer(stream, lineterminator="\n").writerows(chain([header], rows))

    def _summary(self, entry: Entry) -> list[Any]:
        image, objects, names = entry["image"], entry["objects"], self.model.names
        counts = Counter(names[obj["category_id"]] for obj in objects)
        by_category = [counts[row["name"]] for row in self.model.categories]
        pixels, total = image["height"] * image["width"], sum(by_category)
        areas = [obj["measures"]["area"] for obj in objects if "measures" in obj]
        fraction = sum(areas) / pixels if len(areas) == len(objects) else ""
        sides = [obj["bbox"][2:] for obj in objects]
        means = np.mean(sides, axis=0).tolist() if sides else ["", ""]
        size = image["height"], image["width"]
        about = image["id"], cell_text(image["file_name"]), *size, *_moment(image)
        return [*about, total, total * 1e6 / pixels, *means, fraction, *by_category]


@FORMATS.register("measures")
class MeasureResults(CsvResults):
    """Writes CSV with the `measures` of each object instead of its mask."""

    @property
    def columns(self) -> list[str]:
        intensities = [f"intensity_mean-{channel}" for channel in range(self.model.channels)]
        names = ("image_id", "file_name", "label", *COLUMNS, *MEASURES, *intensities)
        return [name for name in dict.fromkeys(names) if name not in _LONG]


@FORMATS.register("parquet")
class ParquetResults(_Results):
    """Writes detections/part-000000.parquet, with a row for each object."""

    outputs = ("detections/part-000000.parquet",)
    requires = "pyarrow.parquet", "detlite[parquet]"

    def write(self, entries: Iterable[Entry]) -> None:
        import pyarrow as pa  # is optional
        from pyarrow import parquet

        super().write(entries)
        types = {"list<float32>": pa.list_(pa.float32())}
        columns = [(n, types.get(t) or pa.type_for_alias(t)) for n, t in COLUMNS.items()]
        schema, rows = pa.schema(columns), self.rows(entries)
        make_folder(self.folder / "detections")
        with (
            atomic_path(self.folder / self.outputs[0]) as temporary,
            parquet.ParquetWriter(temporary, schema) as file,
        ):
            while group := list(islice(rows, _ROWS_PER_GROUP)):
                file.write_table(pa.Table.from_pylist(group, schema))


def to_rows(entry: Entry, names: Mapping[int, str]) -> Iterator[Entry]:
    """Yield the objects of an entry as rows with the keys of COLUMNS, label and its measures.

    The label is the number that an object has in a label image. `names` are those of categories.
    """
    image = entry["image"]
    name = valid_text(image["file_name"])
    for label, obj in enumerate(entry.get("objects", ()), start=1):
        mask = obj.get("segmentation")
        values = (
            image["id"], name, image["height"], image["width"], *_moment(image),
            obj["category_id"], valid_text(names[obj["category_id"]]), obj["score"], *obj["bbox"],
            mask and mask["counts"],
            *map(obj.get, ("area", "rotated_box", "keypoints", "track_id")),
            json.dumps(own) if (own := own_values(obj)) else None,
        )  # fmt: skip
        row = dict(zip(COLUMNS, values, strict=True))
        yield row | {"label": label} | obj.get("measures", {})


def _moment(image: Entry) -> tuple[int | None, float | None]:
    """Return the frame and time of a frame of a video."""
    return image.get("frame"), image.get("time")


def valid_text(text: str) -> str:
    """Return a name that UTF-8 can encode: file names are bytes, and JSON can have surrogates."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def cell_text(text: str) -> str:
    """Return a name for a cell of a CSV file: valid UTF-8, and no formula of a spreadsheet."""
    text = valid_text(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _cells(row: Entry, columns: Sequence[str]) -> list[Any]:
    texts = {name: cell_text(row[name]) for name in ("file_name", "category")}
    lists = {name: row[name] and " ".join(map(str, row[name])) for name in _LISTS}
    return [(row | texts | lists)[name] for name in columns]
