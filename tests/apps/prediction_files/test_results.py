"""Test the files of results with the libraries that read them."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detlite.apps.prediction_files.measures import MEASURES
from detlite.apps.prediction_files.results import COLUMNS, cell_text
from detlite.apps.prediction_files.writer import ModelInfo
from detlite.structures.masks.formats import encode_bitmap
from tests.builders import write_predictions

MODEL = ModelInfo([{"id": 7, "name": "cell, round"}])


def make_entry(image_id: int, count: int, **fields: Any) -> dict[str, Any]:
    """Return the entry of a 5x4 image with `count` objects."""
    name = f'a "{image_id}", "objects": [\n.jpg'
    image = {"id": image_id, "file_name": name, "height": 4, "width": 5}
    objects = [
        {"image_id": image_id, "category_id": 7, "score": 0.1 * (1 + number),
         "bbox": [1.5, 2, 3, 4], **fields}
        for number in range(count)
    ]  # fmt: skip
    return {"image": image, "objects": objects}


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


MASK = {"segmentation": encode_bitmap(np.eye(4, 5)),
        "area": 4, "rotated_box": [2.0, 2.0, 5.0, 1.5, 45.0]}  # fmt: skip
KEYPOINTS = {"keypoints": [1.0, 2.5, 1.0, 3.0, 4.0, 1.0]}
ENTRIES = [
    make_entry(1, 2, **MASK), make_entry(2, 0), make_entry(4, 1, **KEYPOINTS), make_entry(5, 3),
]  # fmt: skip


@pytest.mark.parametrize("entries", [ENTRIES, ENTRIES[1:2], ENTRIES[1:], []])
def test_coco_results(tmp_path, entries):
    write_predictions(tmp_path, "results", entries, MODEL)
    rows = [row for entry in entries for row in entry["objects"]]
    assert json.loads((tmp_path / "results.json").read_text()) == rows
    images = json.loads((tmp_path / "images.json").read_text())
    assert images["images"] == [entry["image"] for entry in entries]
    assert images["categories"] == MODEL.categories


@pytest.mark.parametrize("format", ["csv", "coco", "yolo", "geojson"])
def test_own_fields_are_written_or_named(format, tmp_path, caplog):
    own = {"attributes": {"red": 0.5}, "features": [0.3141]}
    entry = make_entry(1, 2, **own)
    entry["image"]["copy"] = "a.png"
    write_predictions(tmp_path, format, [entry], MODEL)
    texts = [file.read_text() for file in tmp_path.rglob("*.*") if file.is_file()]
    assert any("attributes" in text and "red" in text for text in texts) == (format != "yolo")
    assert not any("0.3141" in text for text in texts)
    expected = ["this format has no place for attributes"] * (format == "yolo")
    assert [record.message for record in caplog.records] == expected


def test_csv_has_a_row_for_each_object(tmp_path):
    entries = [*ENTRIES, make_entry(6, 1)]
    entries[-1]["image"] |= {"frame": 2, "time": 0.08}  # of a video
    write_predictions(tmp_path, "csv", entries, MODEL)
    rows, images = read_csv(tmp_path / "results.csv"), read_csv(tmp_path / "summary.csv")
    assert list(rows[0]) == list(COLUMNS)
    assert [row["image_id"] for row in rows] == ["1", "1", "4", "5", "5", "5", "6"]
    assert rows[0] == dict.fromkeys(COLUMNS, "") | {
        "image_id": "1", "file_name": 'a "1", "objects": [\n.jpg',
        "image_height": "4", "image_width": "5",
        "category_id": "7", "category": "cell, round", "score": "0.1",
        "x": "1.5", "y": "2", "width": "3", "height": "4",
        "mask": MASK["segmentation"]["counts"],
        "area": "4", "rotated_box": "2.0 2.0 5.0 1.5 45.0",
    }  # fmt: skip
    assert (rows[2]["mask"], rows[2]["keypoints"]) == ("", "1.0 2.5 1.0 3.0 4.0 1.0")
    for row in (rows[-1], images[-1]):
        assert (row["frame"], row["time"]) == ("2", "0.08")


def test_summary_of_a_model_without_masks(tmp_path):
    model = ModelInfo([{"id": 7, "name": "=cell"}, {"id": 8, "name": "debris"}])
    write_predictions(tmp_path, "csv", [make_entry(1, 3), make_entry(2, 0)], model)
    first, second = read_csv(tmp_path / "summary.csv")
    assert (first["objects"], first["'=cell"], first["debris"]) == ("3", "3", "0")
    assert (first["mean_width"], first["mean_height"], first["area_fraction"]) == ("3.0", "4.0", "")
    assert float(first["objects_per_megapixel"]) == pytest.approx(3e6 / 20)
    assert (second["objects"], second["mean_width"], second["area_fraction"]) == ("0", "", "0.0")


@pytest.mark.parametrize("format", ["results", "csv", "measures"])
def test_names_that_are_not_utf8(tmp_path, format):
    values = dict.fromkeys((*MEASURES, *(f"intensity_mean-{k}" for k in range(3))), 1.0)
    entry = make_entry(1, 1, measures=values)
    entry["image"]["file_name"] = name = os.fsdecode(b"caf\xe9.jpg")
    write_predictions(tmp_path, format, [entry], ModelInfo([{"id": 7, "name": "cell \ud800"}]))
    assert json.loads((tmp_path / "images.json").read_text())["images"][0]["file_name"] == name
    if format == "csv":
        (row,) = read_csv(tmp_path / "results.csv")
        assert (row["file_name"], row["category"]) == ("caf\ufffd.jpg", "cell \ufffd")


def test_names_are_no_formulas():
    for start in "=+-@\t\r":
        assert cell_text(f"{start}1+1") == f"'{start}1+1"
        assert cell_text(f"a{start}") == f"a{start}"
