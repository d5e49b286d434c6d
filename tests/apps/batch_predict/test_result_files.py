"""Test the files of detections with the libraries that read them."""

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detlite.apps.batch_predict import result_files
from detlite.apps.batch_predict.result_files import (
    COLUMNS,
    SUFFIXES,
    Journal,
    check_format,
    read_journal,
    write_detections,
    write_results,
)
from detlite.config import ConfigError
from detlite.files.errors import DataError
from detlite.structures.masks.formats import encode_bitmap

NAMES = {7: "cell, round", -1: "background"}


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


MASK = {"segmentation": encode_bitmap(np.eye(4, 5)), "mask_score": 0.05,
        "area": 4, "rotated_box": [2.0, 2.0, 5.0, 1.5, 45.0]}  # fmt: skip
KEYPOINTS = {"keypoints": [1.0, 2.5, 1.0, 3.0, 4.0, 1.0]}
UNREADABLE = {"image": {"id": 3, "file_name": "x"}, "problem": "damaged"}
PARTS = [
    [make_entry(1, 2, **MASK), make_entry(2, 0)],
    [UNREADABLE],
    [make_entry(4, 1, **KEYPOINTS), make_entry(5, 3)],
]


def require_library(format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[parquet]")


def write_joined(format: str, folder: Path, parts: list[list[dict[str, Any]]]) -> Path:
    journals = [folder / f"{number}.journal" for number in range(len(parts))]
    for file, part in zip(journals, parts, strict=True):
        with Journal(file) as journal:
            for entry in part:
                journal.add(entry)
    write_results(folder, format, journals, [{"id": 7, "name": NAMES[7]}])
    return folder / f"results{SUFFIXES[format]}"


def test_journal_continues_after_the_last_complete_line(tmp_path):
    file = tmp_path / "journal"
    with Journal(file) as journal:
        assert journal.count == 0
        journal.add({"a": "ü\n"})
        assert list(read_journal(file)) == [{"a": "ü\n"}]  # written immediately
        journal.add({"a": 2})
    file.write_bytes(file.read_bytes() + b'{"a": 3}')  # no line end
    with Journal(file) as journal:
        assert journal.count == 2
        journal.add({"a": 4})
    assert [entry["a"] for entry in read_journal(file)] == ["ü\n", 2, 4]


@pytest.mark.parametrize("parts", [PARTS, PARTS[1:2], PARTS[1:], [[]]])
def test_joined_coco_results(tmp_path, parts):
    file = write_joined("coco", tmp_path, parts)
    expected = [obj for part in parts for entry in part for obj in entry.get("objects", [])]
    assert json.loads(file.read_text()) == expected
    images = [entry["image"] for part in parts for entry in part if "objects" in entry]
    assert json.loads((tmp_path / "images.json").read_text())["images"] == images


def test_csv_has_a_row_for_each_object(tmp_path):
    file = write_joined("csv", tmp_path, PARTS)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["image_id"] for row in rows] == ["1", "1", "4", "5", "5", "5"]
    assert rows[0] == {
        "image_id": "1", "file_name": 'a "1", "objects": [\n.jpg',
        "image_height": "4", "image_width": "5",
        "category_id": "7", "category": "cell, round", "score": "0.1",
        "x": "1.5", "y": "2", "width": "3", "height": "4",
        "mask": MASK["segmentation"]["counts"], "mask_score": "0.05",
        "area": "4", "rotated_box": "2.0 2.0 5.0 1.5 45.0",
        "keypoints": "", "track_id": "",
    }  # fmt: skip
    assert (rows[2]["mask"], rows[2]["keypoints"]) == ("", "1.0 2.5 1.0 3.0 4.0 1.0")


@pytest.mark.parametrize("format", list(SUFFIXES))
def test_file_names_that_are_not_utf8(tmp_path, format):
    require_library(format)
    entry = make_entry(1, 1, measures={"area": 2.0})
    entry["image"]["file_name"] = name = os.fsdecode(b"caf\xe9.jpg")
    file = write_joined(format, tmp_path, [[entry]])
    assert json.loads((tmp_path / "images.json").read_text())["images"][0]["file_name"] == name
    if format == "csv":
        assert "caf\N{REPLACEMENT CHARACTER}.jpg" in file.read_text()


def test_folder_of_parquet_files(tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, detlite[parquet]")
    monkeypatch.setattr(result_files, "_ROWS_PER_GROUP", 2)  # several row groups in a part
    for number, part in enumerate(PARTS):
        write_detections("parquet", tmp_path / f"part-{number}.parquet", part, NAMES)
    table = pq.read_table(tmp_path)
    types = {"float32": "float", "list<float32>": "list<element: float>"}
    assert {field.name: str(field.type) for field in table.schema} == {
        name: types.get(kind, kind) for name, kind in COLUMNS.items()
    }
    rows = table.to_pylist()
    assert [row["image_id"] for row in rows] == [1, 1, 4, 5, 5, 5]
    assert (rows[0]["mask"], rows[0]["keypoints"]) == (MASK["segmentation"]["counts"], None)
    assert (rows[2]["mask"], rows[2]["keypoints"]) == (None, KEYPOINTS["keypoints"])
    assert rows[5]["score"] == np.float32(0.3)
    assert pq.ParquetFile(tmp_path / "part-2.parquet").num_row_groups == 2


def test_parquet_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    check_format("csv")
    with pytest.raises(ConfigError, match=r"pip install 'detlite\[parquet\]'"):
        check_format("parquet")


@pytest.mark.parametrize("format", ["csv", "measures", "parquet"])
def test_error_leaves_no_file(tmp_path, format):
    require_library(format)

    def broken() -> Any:
        yield make_entry(1, 1)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_detections(format, tmp_path / "part", broken(), NAMES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [lambda line: line[:-20] + b"\n", lambda line: line[:30] + b"\n", lambda line: line[9:],
     lambda line: line[:-1]],
)  # fmt: skip
def test_damaged_journals_leave_no_coco_results(tmp_path, damage):
    file = tmp_path / "a.journal"
    with Journal(file) as journal:
        for entry in (UNREADABLE, make_entry(1, 2, **MASK)):
            journal.add(entry)
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + damage(second))
    with pytest.raises(DataError, match=r"a\.journal: line 2 is damaged"):
        write_results(tmp_path, "coco", [file], [])
    assert list(tmp_path.iterdir()) == [file]
