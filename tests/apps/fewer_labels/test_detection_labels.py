"""Detections as labels in COCO's format."""

from types import SimpleNamespace

import numpy as np

from detlite.apps.fewer_labels.detection_labels import coco_labels
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
