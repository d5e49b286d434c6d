"""Keypoints in COCO results."""

import torch

from detlite.conventions import CONVENTIONS
from detlite.evaluation import to_coco_results
from detlite.structures.instances import Detections


def detected(keypoints):
    """Return the detection of a person with these keypoints in a 10 x 20 image."""
    return Detections(
        boxes=torch.tensor([[0.0, 0, 20, 10]]),
        scores=torch.tensor([0.5]),
        labels=torch.tensor([1]),
        valid=torch.tensor([True]),
        keypoints=torch.tensor([keypoints]),
        keypoint_scores=torch.zeros(1, len(keypoints)),
    )


PERSON = [{"id": 3, "name": "person"}]


def test_keypoint_indices_in_results():
    corner = CONVENTIONS["torchvision"]
    detections = detected([[6.0, 8.5, 1]])
    (result,) = to_coco_results(detections, 5, (10, 20), (20, 20), PERSON, corner).to_coco()
    assert result["keypoints"] == [6, 17, 1]


def test_keypoint_centers_become_indices_in_results():
    detections = detected([[6.5, 8.5, 1], [1, 2, 1]])
    (result,) = to_coco_results(detections, 5, (10, 20), (20, 20), PERSON).to_coco()
    assert result["keypoints"] == [6, 16.5, 1, 0.5, 3.5, 1]
