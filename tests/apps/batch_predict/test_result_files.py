"""Files of detections, against the libraries that read them."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detlite.apps.batch_predict import result_files as formats
from detlite.apps.batch_predict.result_files import (
    COLUMNS,
    SUFFIXES,
    check_format,
    join,
    write_detections,
)
from detlite.structures.masks.formats import encode_bitmap

NAMES = {7: "cell, round", -1: "background"}


def picture(image_id: int, count: int, **more: Any) -> dict[str, Any]:
    """A picture of 4 x 5 with so many objects."""
    image = {"id": image_id, "file_name": f'a "{image_id}",\n.jpg', "height": 4, "width": 5}
    objects = [
        {"image_id": image_id, "category_id": 7, "score": 0.1 * (1 + number),
         "bbox": [1.5, 2, 3, 4], **more}
        for number in range(count)
    ]  # fmt: skip
    return {"image": image, "objects": objects}


MASK = {"segmentation": encode_bitmap(np.eye(4, 5))}
POINTS = {"keypoints": [1.0, 2.5, 1.0, 3.0, 4.0, 1.0]}
UNREADABLE = {"image": {"id": 3, "file_name": "x"}, "problem": "damaged"}
PARTS = [
    [picture(1, 2, **MASK), picture(2, 0)],
    [UNREADABLE],
    [picture(4, 1, **POINTS), picture(5, 3)],
]


def written(form: str, folder: Path, parts: list[list[dict[str, Any]]]) -> Path:
    files = [folder / f"{number}{SUFFIXES[form]}" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        write_detections(form, file, part, NAMES)
    join(form, files, folder / "all")
    return folder / "all"


@pytest.mark.parametrize("parts", [PARTS, PARTS[1:2], PARTS[1:], [[]]])
def test_coco_parts_are_the_results_of_all(tmp_path: Path, parts: Any) -> None:
    file = written("coco", tmp_path, parts)
    wanted = [row for part in parts for one in part for row in one.get("objects", [])]
    assert json.loads(file.read_text()) == wanted


def test_csv_has_a_row_for_each_object(tmp_path: Path) -> None:
    file = written("csv", tmp_path, PARTS)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["image_id"] for row in rows] == ["1", "1", "4", "5", "5", "5"]
    assert rows[0] == {
        "image_id": "1", "file_name": 'a "1",\n.jpg', "image_height": "4", "image_width": "5",
        "category_id": "7", "category": "cell, round", "score": "0.1",
        "x": "1.5", "y": "2", "width": "3", "height": "4",
        "mask": MASK["segmentation"]["counts"], "keypoints": "", "track_id": "",
    }  # fmt: skip
    assert (rows[2]["mask"], rows[2]["keypoints"]) == ("", "1.0 2.5 1.0 3.0 4.0 1.0")


@pytest.mark.parametrize("form", list(SUFFIXES))
def test_names_that_are_no_text(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[parquet]")
    one = picture(1, 1)
    one["image"]["file_name"] = os.fsdecode(b"caf\xe9.jpg")
    write_detections(form, tmp_path / "part", [one], NAMES)
    if form == "csv":
        assert "caf\N{REPLACEMENT CHARACTER}.jpg" in (tmp_path / "part").read_text()


def test_parquet_is_read_by_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, detlite[parquet]")
    monkeypatch.setattr(formats, "_ROWS", 2)  # so that a part has several row groups
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
    assert (rows[2]["mask"], rows[2]["keypoints"]) == (None, POINTS["keypoints"])
    assert rows[5]["score"] == np.float32(0.3)
    assert pq.ParquetFile(tmp_path / "part-2.parquet").num_row_groups == 2


def test_parquet_without_its_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    check_format("csv")
    with pytest.raises(formats.ConfigError, match=r"pip install 'detlite\[parquet\]'"):
        check_format("parquet")


@pytest.mark.parametrize("form", list(SUFFIXES))
def test_a_part_that_fails_leaves_nothing(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow, detlite[parquet]")

    def broken() -> Any:
        yield picture(1, 1)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_detections(form, tmp_path / "part", broken(), NAMES)
    assert list(tmp_path.iterdir()) == []
