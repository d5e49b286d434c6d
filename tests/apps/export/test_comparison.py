"""Differences between two sets of detections."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from detlite.apps.export.comparison import Difference, compare
from detlite.structures.instances import Detections


@pytest.fixture
def found() -> Detections:
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 20, 30]])
    return Detections(
        boxes,
        torch.tensor([0.9, 0.9, 0.5]),
        torch.tensor([1, 2, 1]),
        torch.ones(3, dtype=torch.bool),
        torch.rand(3, 4, 4),
    )


def test_the_same_in_another_order(found):
    assert compare(found, found[torch.tensor([2, 1, 0])]) == Difference(objects=3)


def test_each_field(found):
    moved = replace(found, boxes=found.boxes + torch.tensor([[0.0], [0.0], [0.25]]))
    assert compare(found, moved).boxes == 0.25
    surer = replace(found, scores=found.scores + torch.tensor([0.0, 0.125, 0.0]))
    assert compare(found, surer).scores == pytest.approx(0.125)
    masks = found.mask_probs.clone()
    masks[1, 2, 3] += 0.5
    assert compare(found, replace(found, mask_probs=masks)).masks == pytest.approx(0.5)


def test_objects_of_one_alone(found):
    assert compare(found, found[:2]) == Difference(objects=2, unmatched=1)
    assert compare(found[:0], found[:2]) == Difference(unmatched=2)
    relabelled = replace(found, labels=torch.tensor([3, 2, 1]))
    assert compare(found, relabelled) == Difference(objects=2, unmatched=2)
    far = replace(found, boxes=found.boxes + torch.tensor([[2.0], [0.0], [0.0]]))
    assert compare(found, far) == Difference(objects=2, unmatched=2)


def test_together_and_within():
    both = Difference(2, 0, boxes=0.1) | Difference(3, 0, scores=0.2, keypoints=0.3)
    assert both == Difference(5, 0, boxes=0.1, scores=0.2, keypoints=0.3)
    assert both.within(boxes=0.3, scores=0.2, masks=0)
    assert not both.within(boxes=0.2, scores=0.2, masks=0)
    assert not both.within(boxes=0.3, scores=0.1, masks=0)
    assert not Difference(masks=0.5).within(1, 1, masks=0.4)
    assert not Difference(unmatched=1).within(1, 1, 1)
