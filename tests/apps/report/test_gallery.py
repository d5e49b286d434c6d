"""Pictures of mistakes: which are chosen, and what is drawn where."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detlite.apps.report.analysis.detection_analysis import analyze_detections
from detlite.apps.report.gallery import Gallery
from detlite.data import CocoDataset
from detlite.evaluation import Results
from detlite.structures.masks.formats import encode_bitmap, polygons_to_rle

MISNAMED, MISSED = [20.0, 30.0, 40.0, 30.0], [150.0, 100.0, 30.0, 40.0]


def corners(box: list[float]) -> list[list[float]]:
    x, y, w, h = box
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def rle(box: list[float]) -> dict[str, Any]:
    found = polygons_to_rle(corners(box), 160, 200)
    return {"size": list(found["size"]), "counts": found["counts"].decode()}


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """A grey picture with a cat that is detected as a dog, and a dog that nothing finds."""
    content = {
        "categories": [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}],
        "images": [{"id": 7, "file_name": "a.png", "height": 160, "width": 200}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": MISNAMED, "iscrowd": 0,
             "area": 1200, "segmentation": corners(MISNAMED)},
            {"id": 2, "image_id": 7, "category_id": 5, "bbox": MISSED, "iscrowd": 0,
             "area": 1200, "segmentation": corners(MISSED)},
        ],
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(content))
    Image.new("RGB", (200, 160), (128, 128, 128)).save(tmp_path / "a.png")
    dataset = CocoDataset(tmp_path / "a.json", tmp_path)
    row = {"image_id": 7, "category_id": 5, "bbox": MISNAMED, "score": 0.75,
           "segmentation": rle(MISNAMED)}  # fmt: skip
    results = Results.from_coco([row], ["bbox", "segm"])
    coco_gt = dataset.coco_gt()
    analysis = analyze_detections(coco_gt, results, "segm", np.ones((1, 1), np.uint8))
    return Gallery(dataset, coco_gt, results, analysis, most=5)


def halves(source: str) -> tuple[np.ndarray, np.ndarray]:
    """What is labelled and what is detected, as colours less the grey of the picture."""
    data = base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(data))).astype(int) - 128
    side = (pixels.shape[1] - 6) // 2
    return pixels[:, :side], pixels[:, -side:]


def test_a_wrong_detection(gallery: Gallery) -> None:
    (one,) = gallery.false_positives()
    assert (one.category, one.kind, one.score) == ("dog", "classification", 0.75)
    assert one.text == "dog: labelled cat (a.png)"
    labelled, detected = halves(one.source)
    # The window of 88 pixels about the box begins at the picture's left border and at y = 1.
    scale = 240 / 88
    y, x = round((45 - 1) * scale), round(40 * scale)
    red, green, blue = detected[y, x]
    assert red > 30 > max(green, blue)  # the mask of the mistake
    red, green, blue = labelled[y, x]
    assert min(red, green) > 20 > blue  # yellow
    assert abs(detected[5:20, 5:40]).max() < 12  # nothing beside it


def test_a_missed_object(gallery: Gallery) -> None:
    found = gallery.misses()
    # The cat is not found either: what is there has another name.
    assert [(one.category, one.kind) for one in found] == [("cat", "missed"), ("dog", "missed")]
    assert found[0].text == "cat of 1200 px²: nearest is dog 0.75, overlap 100 % (a.png)"
    assert found[0].score == 0.75
    assert found[1].text == "dog of 1200 px²: nothing is detected there (a.png)"
    assert found[1].score == 0
    labelled, detected = halves(found[1].source)
    assert abs(detected).max() < 12
    assert (labelled.max(axis=(0, 1)) > 60).any()


def test_each_category_has_its_turn(gallery: Gallery) -> None:
    few = Gallery(gallery.dataset, gallery.coco_gt, gallery.results, gallery.analysis, most=1)
    assert len(few.misses()) == 1
    assert len(few.false_positives()) == 1


def test_detections_of_nothing(gallery: Gallery) -> None:
    """One whose mask is empty lies on the cat, another beside all objects."""
    empty = {"size": [160, 200], "counts": encode_bitmap(np.zeros((160, 200)))["counts"]}
    beside = [100.0, 10.0, 20.0, 20.0]
    rows = [
        {"image_id": 7, "category_id": 3, "bbox": MISNAMED, "score": 0.5, "segmentation": empty},
        {
            "image_id": 7,
            "category_id": 5,
            "bbox": beside,
            "score": 0.6,
            "segmentation": rle(beside),
        },
    ]
    results = Results.from_coco(rows, ["bbox", "segm"])
    analysis = analyze_detections(gallery.coco_gt, results, "segm", np.ones((1, 1), np.uint8))
    found = Gallery(gallery.dataset, gallery.coco_gt, results, analysis, 5).false_positives()
    assert [one.text for one in found] == [
        "dog: meets nothing labelled (a.png)", "cat: its mask is empty (a.png)",
    ]  # fmt: skip
    assert {one.kind for one in found} == {"background"}
