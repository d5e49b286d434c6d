"""Test which errors the gallery selects, and what it draws."""

import base64
import io
import json
from dataclasses import replace
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


def rle(box: list[float]) -> dict[str, Any]:
    encoded = polygons_to_rle(rectangle(*box), 160, 200)
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


@pytest.fixture
def analyzed(tmp_path: Path) -> RunAnalysis:
    """Return the analysis of a gray image with a cat detected as a dog, and a missed dog."""
    objects = [
        coco_object(box, category, 7, segmentation=rectangle(*box))
        for category, box in ((3, MISNAMED), (5, MISSED))
    ]
    content = coco_content(objects, [7], (160, 200), {3: "cat", 5: "dog"})
    (tmp_path / "a.json").write_text(json.dumps(content))
    Image.new("RGB", (200, 160), (128, 128, 128)).save(tmp_path / "7.png")
    dataset = CocoDataset(tmp_path / "a.json", tmp_path)
    row = coco_detection(MISNAMED, 0.75, 5, 7, segmentation=rle(MISNAMED))
    results = Results.from_coco([row], ["bbox", "segm"])
    coco_gt = build_coco_gt(dataset)
    analysis = DetectionAnalysis(coco_gt, results, "segm", np.ones((1, 1), np.uint8))
    run = Run("run", tmp_path, CfgNode())
    return RunAnalysis(run, dataset, coco_gt, results, {"segm": analysis})


@pytest.fixture
def gallery(analyzed: RunAnalysis) -> ErrorGallery:
    return ErrorGallery(analyzed, 5)


def panels(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right panel, relative to the gray of the image."""
    data = base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(data))).astype(int) - 128
    pixels = pixels[6:-6, 6:-6]
    side = (pixels.shape[1] - 6) // 2
    return pixels[:, :side], pixels[:, -side:]


def test_false_positive(gallery):
    (error,) = gallery.false_positives()
    assert (error.category, error.kind, error.score) == ("dog", "classification", 0.75)
    assert error.text == "dog, labeled cat (7.png)"
    labels, detections = panels(error.source)
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
    assert (cat.category, cat.kind, cat.score) == ("cat", "missed", 0.75)
    assert cat.text == "cat of 1200 px²: nearest is dog 0.75, IoU 100 % (7.png)"
    assert (dog.category, dog.kind, dog.score) == ("dog", "missed", 0)
    assert dog.text == "dog of 1200 px²: no detection there (7.png)"
    labels, detections = panels(dog.source)
    assert abs(detections).max() < 24  # JPEG blurs the frame
    assert (labels.max(axis=(0, 1)) > 60).any()


def test_number_of_images_is_limited(analyzed):
    few = ErrorGallery(analyzed, max_images=1)
    assert len(few.missed_objects()) == 1
    assert len(few.false_positives()) == 1


def test_background_detections(analyzed):
    """A detection on the cat has an empty mask; another one is far from all objects."""
    empty = {"size": [160, 200], "counts": encode_bitmap(np.zeros((160, 200)))["counts"]}
    far = [100.0, 10.0, 20.0, 20.0]
    rows = [
        coco_detection(MISNAMED, 0.5, 3, 7, segmentation=empty),
        coco_detection(far, 0.6, 5, 7, segmentation=rle(far)),
    ]
    results = Results.from_coco(rows, ["bbox", "segm"])
    analysis = DetectionAnalysis(analyzed.coco_gt, results, "segm", np.ones((1, 1), np.uint8))
    analyzed = replace(analyzed, results=results, analyses={"segm": analysis})
    errors = ErrorGallery(analyzed, 5).false_positives()
    assert [error.text for error in errors] == [
        "dog (7.png)", "cat (7.png)",
    ]  # fmt: skip
    assert {error.kind for error in errors} == {"background"}


def test_examples_mark_right_wrong_and_missed_objects(analyzed: RunAnalysis) -> None:
    """The cat is right, a detection of low score does not count."""
    rows = [
        {"image_id": 7, "category_id": 3, "bbox": MISNAMED, "score": 0.9,
         "segmentation": rle(MISNAMED)},
        {"image_id": 7, "category_id": 5, "bbox": [100.0, 10.0, 30.0, 30.0], "score": 0.95,
         "segmentation": rle([100.0, 10.0, 30.0, 30.0])},
        {"image_id": 7, "category_id": 5, "bbox": MISSED, "score": 0.1,
         "segmentation": rle([150.0, 100.0, 10.0, 40.0])},
    ]  # fmt: skip
    results = Results.from_coco(rows, ["bbox", "segm"])
    analysis = DetectionAnalysis(analyzed.coco_gt, results, "segm", np.ones((1, 1), np.uint8))
    gallery = ErrorGallery(replace(analyzed, results=results, analyses={"segm": analysis}), 5)
    (example,) = gallery.examples(6)
    assert [example[name] for name in ("file", "right", "wrong", "missed")] == ["7.png", 1, 1, 1]
    assert example["aspect"] == pytest.approx(200 / 160, rel=0.01)
    data = base64.b64decode(example["source"].removeprefix("data:image/jpeg;base64,"))
    drawn = np.asarray(Image.open(io.BytesIO(data))).astype(int) - 128
    scale = drawn.shape[1] / 200
    right, wrong, missed = (
        drawn[round(y * scale), round(x * scale)] for x, y in ((40, 45), (115, 30), (165, 125))
    )
    assert right[2] > 20 > right[0]  # blue
    assert wrong[0] > 20 > max(wrong[1:])  # red
    assert min(missed[:2]) > 20 > missed[2]  # yellow
    assert not gallery.examples(0)
