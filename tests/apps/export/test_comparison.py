"""Test the comparison of two sets of detections."""

from dataclasses import replace

import pytest
import torch

from detlite.apps.export.comparison import Difference, compare
from detlite.structures.instances import Detections


@pytest.fixture
def detections() -> Detections:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 20, 30]])
    return Detections(
        boxes,
        torch.tensor([0.9, 0.9, 0.5]),
        torch.tensor([1, 2, 1]),
        torch.ones(3, dtype=torch.bool),
        torch.rand(3, 4, 4),
    )


def test_order_does_not_matter(detections):
    assert compare(detections, detections[torch.tensor([2, 1, 0])]) == Difference(objects=3)


def test_difference_of_each_field(detections):
    moved = replace(detections, boxes=detections.boxes + torch.tensor([[0.0], [0.0], [0.25]]))
    assert compare(detections, moved).boxes == 0.25
    rescored = replace(detections, scores=detections.scores + torch.tensor([0.0, 0.125, 0.0]))
    assert compare(detections, rescored).scores == pytest.approx(0.125)
    masks = detections.mask_probs.clone()
    masks[1, 2, 3] += 0.5
    assert compare(detections, replace(detections, mask_probs=masks)).masks == pytest.approx(0.5)


def test_unmatched_objects(detections):
    assert compare(detections, detections[:2]) == Difference(objects=2, unmatched=1)
    assert compare(detections[:0], detections[:2]) == Difference(unmatched=2)
    relabelled = replace(detections, labels=torch.tensor([3, 2, 1]))
    assert compare(detections, relabelled) == Difference(objects=2, unmatched=2)
    far = replace(detections, boxes=detections.boxes + torch.tensor([[2.0], [0.0], [0.0]]))
    assert compare(detections, far) == Difference(objects=2, unmatched=2)


def test_union_and_limits():
    both = Difference(2, 0, boxes=0.1) | Difference(3, 0, scores=0.2, keypoints=0.3)
    assert both == Difference(5, 0, boxes=0.1, scores=0.2, keypoints=0.3)
    assert both.within(boxes=0.3, scores=0.2, masks=0)
    assert not both.within(boxes=0.2, scores=0.2, masks=0)
    assert not both.within(boxes=0.3, scores=0.1, masks=0)
    assert not Difference(masks=0.5).within(1, 1, masks=0.4)
    assert not Difference(unmatched=1).within(1, 1, 1)
