"""Results of predictions: COCO results, CSV and measurements.

All formats also write images.json, a COCO file of the images without annotations.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from detlite.files.atomic_write import atomic_open
from detlite.structures.object_fields import own_values

from .measures import MEASURES
from .writer import COCO_BEGIN, FORMATS, Entry, ModelInfo, PredictionWriter

# Columns of CSV. frame and time (in seconds) are those of a video, x, y, width and height the box
# in pixels, mask the `counts` of a COCO RLE of the image's size, area its number of pixels,
# rotated_box its smallest rectangle (see `structures.masks.rotated_box`), keypoints x, y, v of each
# keypoint, track_id the id of an object tracked through a video, and fields the own fields as JSON.
COLUMNS = (
    "image_id", "file_name", "image_height", "image_width", "frame", "time", "category_id",
    "category", "score", "x", "y", "width", "height", "mask", "area", "rotated_box", "keypoints",
    "track_id", "fields",
)  # fmt: skip
_LONG = ("mask", "keypoints")  # columns that are not part of measures
_SUMMARY = ("image_id", "file_name", "image_height", "image_width", "frame", "time", "objects",
            "objects_per_megapixel", "mean_width", "mean_height", "area_fraction")  # fmt: skip


class _Results(PredictionWriter):
    """Writes images.json, for `COCO("images.json").loadRes("results.json")`."""

    def end(self, images: Iterator[Entry]) -> None:
        with atomic_open(self.folder / "images.json") as stream:
            stream.writelines(chain([COCO_BEGIN, "]"], self.coco_end(images)))
        super().end(images)


@FORMATS.register("results")
class CocoResults(_Results):
    """Writes all objects as one list of COCO results."""

    outputs = (("results.json", "["),)

    def add(self, entry: Entry, count: int) -> None:
        self.files[0].append(*map(json.dumps, entry["objects"]))


@FORMATS.register("csv")
class CsvResults(_Results):
    """Writes a row for each object, and to summary.csv a row for each image.

    summary.csv has the number, density and size of the objects. The fraction of the area that masks
    cover is empty without measures.
    """

    def __init__(self, folder: Path, model: ModelInfo, columns: Sequence[str] = COLUMNS) -> None:
        super().__init__(folder, model)
        self._columns, names = columns, [cell_text(row["name"]) for row in model.categories]
        summary = _csv_row([*_SUMMARY, *names])
        self.outputs = ("results.csv", _csv_row(columns)), ("summary.csv", summary)

    def add(self, entry: Entry, count: int) -> None:
        rows = self._rows(entry)
        self.files[0].append(*(_csv_row(row[name] for name in self._columns) for row in rows))
        self.files[1].append(_csv_row(self._summary(entry)))

    def _rows(self, entry: Entry) -> Iterator[Entry]:
        """Yield the cells of each object by column, with the measures.

        The label is the number that an object has in a label image.
        """
        image, names = entry["image"], self.model.names
        for label, obj in enumerate(entry["objects"], start=1):
            mask, own = obj.get("segmentation"), own_values(obj)
            lists = (obj.get(name) for name in ("rotated_box", "keypoints"))
            values = (
                *_about(image), obj["category_id"], cell_text(names[obj["category_id"]]),
                obj["score"], *obj["bbox"], mask and mask["counts"], obj.get("area"),
                *(values and " ".join(map(str, values)) for values in lists),
                obj.get("track_id"), json.dumps(own) if own else None,
            )  # fmt: skip
            row = dict(zip(COLUMNS, values, strict=True))
            yield row | {"label": label} | obj.get("measures", {})

    def _summary(self, entry: Entry) -> list[Any]:
        image, objects, names = entry["image"], entry["objects"], self.model.names
        counts = Counter(names[obj["category_id"]] for obj in objects)
        by_category = [counts[row["name"]] for row in self.model.categories]
        pixels, total = image["height"] * image["width"], sum(by_category)
        areas = [obj["measures"]["area"] for obj in objects if "measures" in obj]
        fraction = sum(areas) / pixels if len(areas) == len(objects) else ""
        sides = [obj["bbox"][2:] for obj in objects]
        means = np.mean(sides, axis=0).tolist() if sides else ["", ""]
        return [*_about(image), total, total * 1e6 / pixels, *means, fraction, *by_category]


@FORMATS.register("measures")
class MeasureResults(CsvResults):
    """Writes CSV with the `measures` of each object instead of its mask."""

    def __init__(self, folder: Path, model: ModelInfo) -> None:
        intensities = [f"intensity_mean-{channel}" for channel in range(model.channels)]
        names = ("image_id", "file_name", "label", *COLUMNS, *MEASURES, *intensities)
        columns = [name for name in dict.fromkeys(names) if name not in _LONG]
        super().__init__(folder, model, columns)


def _about(image: Entry) -> list[Any]:
    """Return the first columns of an image or a frame of a video."""
    size, moment = (image["height"], image["width"]), (image.get("frame"), image.get("time"))
    return [image["id"], cell_text(image["file_name"]), *size, *moment]


def _csv_row(cells: Iterable[Any]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def cell_text(text: str) -> str:
    """Return a name for a cell of a CSV file: valid UTF-8, and no formula of a spreadsheet.

    File names are bytes, and names of categories in JSON can have surrogates.
    """
    text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
