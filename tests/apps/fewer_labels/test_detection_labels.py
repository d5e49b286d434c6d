"""Detections as labels in COCO's format."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from detlite.apps.fewer_labels import detection_labels
from detlite.apps.fewer_labels.detection_labels import coco_labels, detect
from detlite.structures.masks.formats import encode_bitmap


def detection(score, mask=None):
    found = {"image_id": 0, "category_id": 7, "bbox": [1.0, 2, 3, 4], "score": score}
    return found if mask is None else found | {"segmentation": encode_bitmap(mask)}


def test_scores_decide_and_empty_masks_are_left_out():
    mask = np.zeros((20, 30), bool)
    mask[2:4, 1:4] = True
    entries = [
        ("a.png", {"image": {"id": 5, "file_name": "x", "height": 20, "width": 30},
                   "objects": [detection(0.6, mask), detection(0.59, mask)]}),
        ("b.png", {"image": {"id": 9, "file_name": "y", "height": 20, "width": 30},
                   "objects": [detection(0.9, mask & False), detection(0.9)]}),
    ]  # fmt: skip
    categories = [{"id": 7, "name": "cell"}]
    content = coco_labels(entries, SimpleNamespace(score_thresh=0.6, categories=categories))
    assert content["categories"] == categories
    images = [(row["id"], row["file_name"]) for row in content["images"]]
    assert images == [(1, "a.png"), (2, "b.png")]
    keys = "id", "image_id", "score", "ignore", "area", "iscrowd"
    assert [tuple(row[key] for key in keys) for row in content["annotations"]] == [
        (1, 1, 0.6, 0, 6, 0), (2, 1, 0.59, 1, 6, 0), (3, 2, 0.9, 0, 12, 0)
    ]  # fmt: skip
    assert content["annotations"][0]["segmentation"] == encode_bitmap(mask)
    assert content["annotations"][2]["segmentation"] == []


def test_keypoints_are_visible():
    row = detection(0.9) | {"keypoints": [5.0, 6.0, 1.0, 7.0, 8.0, 1.0]}
    entry = {"image": {"height": 20, "width": 30}, "objects": [row]}
    predictor = SimpleNamespace(score_thresh=0.6, categories=[{"id": 7, "name": "cell"}])
    (found,) = coco_labels([("a.png", entry)], predictor)["annotations"]
    assert found["keypoints"] == [5, 6, 2, 7, 8, 2]
    assert found["num_keypoints"] == 2


@pytest.mark.parametrize("limit", [2, 3])
def test_limit_of_detections_is_reported(monkeypatch, caplog, limit):
    counts = {"a.png": 2, "b.png": 2, "c.png": 1}
    entries = [{"objects": [detection(0.9)] * count} for count in counts.values()]
    predictor = SimpleNamespace(score_thresh=0.6)
    monkeypatch.setattr(detection_labels, "load_predictor", lambda *args: predictor)
    monkeypatch.setattr(detection_labels, "predict_images", lambda *args: iter(entries))
    _, found = detect("model.pth", list(map(Path, counts)), [], limit)
    assert len(found) == 3
    assert ("2 of 3 images have 2 detections, the limit" in caplog.text) == (limit == 2)
