"""Results of predictions: COCO results, CSV, measurements and Parquet.

All formats also write images.json, a COCO file of the images without annotations.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from detlite.files.atomic_write import atomic_open, atomic_path, make_folder
from detlite.structures.object_fields import own_values

from .measures import MEASURES
from .writer import FORMATS, Entry, ModelInfo, PredictionWriter

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
# Rows and images of a Parquet file, which are in memory until it is written.
_ROWS_PER_FILE, _IMAGES_PER_FILE = 10_000, 1000


class _Results(PredictionWriter):
    """Writes images.json, for `COCO("images.json").loadRes("results.json")`."""

    def finish(self, images: Iterable[Entry]) -> None:
        with atomic_open(self.folder / "images.json") as stream:
            stream.write('{"info": {}, "annotations": [], "images": [')
            for number, image in enumerate(images):
                stream.write(",\n" * (number > 0) + json.dumps(image))
            stream.write(f'], "categories": {json.dumps(list(self.model.categories))}}}\n')


@FORMATS.register("results")
class CocoResults(_Results):
    """Writes all objects as one list of COCO results."""

    outputs: ClassVar[Mapping[str, str]] = {"results.json": "["}

    def add(self, entry: Entry) -> None:
        self.files[0].write_list(entry["objects"])

    def finish(self, images: Iterable[Entry]) -> None:
        super().finish(images)
        self.files[0].write("]")


@FORMATS.register("csv")
class CsvResults(_Results):
    """Writes a row for each object, and to summary.csv a row for each image.

    summary.csv has the number, density and size of the objects. The fraction of the area that masks
    cover is empty without measures.
    """

    outputs: ClassVar[Mapping[str, str]] = {"results.csv": "", "summary.csv": ""}

    def __init__(
        self, folder: Path, model: ModelInfo, positions: Sequence[int] = (), objects: int = 0
    ) -> None:
        super().__init__(folder, model, positions, objects)
        if not positions:
            categories = [cell_text(row["name"]) for row in model.categories]
            self.files[0].write(_csv_text([self.columns]))
            self.files[1].write(_csv_text([(*_SUMMARY, *categories)]))

    @property
    def columns(self) -> list[str]:
        return list(COLUMNS)

    def add(self, entry: Entry) -> None:
        rows = to_rows(entry, self.model.names)
        self.files[0].write(_csv_text([_cells(row, self.columns) for row in rows]))
        self.files[1].write(_csv_text([self._summary(entry)]))

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
    """Writes detections/part-000000.parquet, ..., each with a row for each object."""

    requires = "pyarrow.parquet", "detlite[parquet]"

    def __init__(
        self, folder: Path, model: ModelInfo, positions: Sequence[int] = (), objects: int = 0
    ) -> None:
        super().__init__(folder, model, (), objects)
        make_folder(folder / "detections")
        self._parts = positions[0] if positions else 0
        self._rows: list[Entry] = []
        self._images = 0

    @property
    def positions(self) -> list[int] | None:
        return None if self._images else [self._parts]

    def add(self, entry: Entry) -> None:
        self._rows += to_rows(entry, self.model.names)
        self._images += 1
        if len(self._rows) >= _ROWS_PER_FILE or self._images >= _IMAGES_PER_FILE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._write_part()
        self._images = 0

    def finish(self, images: Iterable[Entry]) -> None:
        super().finish(images)
        for file in self.folder.glob("detections/part-[0-9]*.parquet"):
            if int(file.stem.removeprefix("part-")) >= self._parts:  # of a video that was repeated
                file.unlink()
        if not self._parts:  # readers of the folder need a file, for its columns
            self._write_part()

    def _write_part(self) -> None:
        import pyarrow as pa  # is optional
        from pyarrow import parquet

        types = {"list<float32>": pa.list_(pa.float32())}
        schema = [(n, types.get(t) or pa.type_for_alias(t)) for n, t in COLUMNS.items()]
        table = pa.Table.from_pylist(self._rows, pa.schema(schema))
        with atomic_path(self.folder / f"detections/part-{self._parts:06d}.parquet") as temporary:
            parquet.write_table(table, temporary)
        self._rows, self._parts = [], self._parts + 1


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


def _csv_text(rows: Iterable[Iterable[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
