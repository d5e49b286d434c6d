"""Test which errors the gallery selects, and what it draws."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from yacs.config import CfgNode

from detlite.apps.report.analysis.detection_analysis import DetectionAnalysis
from detlite.apps.report.error_gallery import ErrorGallery
from detlite.apps.report.runs import Run, RunAnalysis
from detlite.data import CocoDataset
from detlite.data.datasets.ground_truth import build_coco_gt
from detlite.evaluation import Results
from detlite.structures.masks.formats import encode_bitmap, polygons_to_rle
from tests.builders import coco_content, coco_detection, coco_object, rectangle

MISNAMED, MISSED = [20.0, 30.0, 40.0, 30.0], [150.0, 100.0, 30.0, 40.0]
FAR = [100.0, 10.0, 30.0, 30.0]


def detection(box: list[float], score: float, category: int, mask: Any = None) -> dict[str, Any]:
    """Return a detection with a mask of its box, or of another box."""
    row = coco_detection(box, score, category, 7)
    return row | {"segmentation": polygons_to_rle(rectangle(*(mask or box)), 160, 200)}


@pytest.fixture
def make_gallery(tmp_path: Path) -> Callable[..., ErrorGallery]:
    """Return a function that makes the gallery of detections on a gray image of a cat and a dog."""
    objects = [
        coco_object(box, category, 7, segmentation=rectangle(*box))
        for category, box in ((3, MISNAMED), (5, MISSED))
    ]
    content = coco_content(objects, [7], (160, 200), {3: "cat", 5: "dog"})
    (tmp_path / "a.json").write_text(json.dumps(content))
    Image.new("RGB", (200, 160), (128, 128, 128)).save(tmp_path / "7.png")
    dataset = CocoDataset(tmp_path / "a.json", tmp_path)
    coco_gt, run = build_coco_gt(dataset), Run("run", tmp_path, CfgNode())

    def make(*rows: dict[str, Any], count: int = 5) -> ErrorGallery:
        results = Results.from_coco(rows, ["bbox", "segm"])
        analysis = DetectionAnalysis(coco_gt, results, "segm", np.ones((1, 1), np.uint8))
        return ErrorGallery(RunAnalysis(run, dataset, coco_gt, results, {"segm": analysis}), count)

    return make


@pytest.fixture
def gallery(make_gallery: Callable[..., ErrorGallery]) -> ErrorGallery:
    """Return the gallery of the cat detected as a dog."""
    return make_gallery(detection(MISNAMED, 0.75, 5))


def pixels_of(source: str) -> np.ndarray:
    """Return the pixels of a data URI relative to the gray of the image."""
    data = base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))
    return np.asarray(Image.open(io.BytesIO(data))).astype(int) - 128


def panels(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right panel."""
    pixels = pixels_of(source)
    side = (pixels.shape[1] - 6) // 2
    return pixels[:, :side], pixels[:, -side:]


def test_false_positive(gallery):
    (error,) = gallery.false_positives()
    assert (error["category"], error["kind"], error["score"]) == ("dog", "classification", 0.75)
    assert error["text"] == "dog, labeled cat (7.png)"
    labels, detections = panels(error["source"])
    # The window of 88 pixels around the box starts at x = 0 and y = 1.
    scale = 240 / 88
    y, x = round((45 - 1) * scale), round(40 * scale)
    red, green, blue = detections[y, x]
    assert red > 30 > max(green, blue)  # mask of the error
    red, green, blue = labels[y, x]
    assert min(red, green) > 20 > blue  # yellow
    assert abs(detections[5:20, 5:40]).max() < 12  # background


def test_missed_objects(gallery):
    cat, dog = gallery.missed_objects()
    # The cat is missed too, because the detection there has another category.
    assert (cat["category"], cat["kind"], cat["score"]) == ("cat", "missed", 0.75)
    assert cat["text"] == "cat of 1200 px²: nearest is dog 0.75, IoU 100 % (7.png)"
    assert (dog["category"], dog["kind"], dog["score"]) == ("dog", "missed", 0)
    assert dog["text"] == "dog of 1200 px²: no detection there (7.png)"
    labels, detections = panels(dog["source"])
    assert abs(detections).max() < 24  # JPEG blurs the frame
    assert (labels.max(axis=(0, 1)) > 60).any()


def test_background_detections(make_gallery):
    """A detection on the cat has an empty mask; a better one is far from all objects."""
    empty = detection(MISNAMED, 0.5, 3) | {"segmentation": encode_bitmap(np.zeros((160, 200)))}
    for count in (1, 5):
        gallery = make_gallery(empty, detection(FAR, 0.6, 5), count=count)
        errors = gallery.false_positives()
        assert [error["text"] for error in errors] == ["dog (7.png)", "cat (7.png)"][:count]
        assert {error["kind"] for error in errors} == {"background"}
        assert len(gallery.missed_objects()) == min(count, 2)


def test_examples_mark_right_wrong_and_missed_objects(make_gallery):
    """The cat is right, a detection of low score does not count."""
    low = detection(MISSED, 0.1, 5, mask=[150.0, 100, 10, 40])
    gallery = make_gallery(detection(MISNAMED, 0.9, 3), detection(FAR, 0.95, 5), low)
    (example,) = gallery.examples(6)
    assert [example[name] for name in ("file", "right", "wrong", "missed")] == ["7.png", 1, 1, 1]
    assert example["aspect"] == pytest.approx(200 / 160, rel=0.01)
    drawn = pixels_of(example["source"])
    scale = drawn.shape[1] / 200
    right, wrong, missed = (
        drawn[round(y * scale), round(x * scale)] for x, y in ((40, 45), (115, 30), (165, 125))
    )
    assert right[2] > 20 > right[0]  # blue
    assert wrong[0] > 20 > max(wrong[1:])  # red
    assert min(missed[:2]) > 20 > missed[2]  # yellow
    assert not gallery.examples(0)
