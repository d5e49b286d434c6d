"""Files of an evaluation: what is in them, and what is left when writing fails."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from detlite import atomic_write as files
from detlite.evaluation import Results
from detlite.evaluation.results import write_results
from detlite.structures.masks.formats import encode_bitmap


def results(count: int) -> Results:
    rows = [
        {"image_id": 1, "category_id": 2, "score": n / 8, "bbox": [n, 0.5, 2.0, 3.0],
         "segmentation": encode_bitmap(np.eye(4 + n))}
        for n in range(count)
    ]  # fmt: skip
    return Results.from_coco(rows, ("bbox", "segm"))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_json_in_parts_is_the_json_of_all(tmp_path: Path, monkeypatch, count: int) -> None:
    monkeypatch.setattr(files, "_CHUNK", 3)
    file = tmp_path / "results.json"
    write_results(results(count), file)
    assert json.loads(file.read_text()) == list(results(count).rows())
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_pycocotools_reads_it(tmp_path: Path) -> None:
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": 1}],
        "annotations": [],
        "categories": [{"id": 2}],
    }
    write_results(results(3), tmp_path / "results.json")
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes(str(tmp_path / "results.json"))
    assert [row["bbox"] for row in found.loadAnns(found.getAnnIds())] == [
        [0.0, 0.5, 2.0, 3.0], [1.0, 0.5, 2.0, 3.0], [2.0, 0.5, 2.0, 3.0],
    ]  # fmt: skip


def test_a_full_disk_names_the_file_and_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text("before")
    (tmp_path / "results.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot be written \(No space left .*results\.json'$"):
        write_results(results(3), file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot be written \(No such file .*nowhere/results"):
        write_results(results(1), tmp_path / "nowhere" / "results.json")
