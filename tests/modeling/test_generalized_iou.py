"""GIoU and its gradient, against torchvision's."""

from __future__ import annotations

import pytest
import torch
from torchvision.ops import generalized_box_iou_loss

from detlite.modeling.box_coder import generalized_iou

BOX = [10.0, 10, 30, 20]


@pytest.mark.parametrize(
    "other",
    [
        BOX,
        [12.0, 5, 50, 18],  # overlaps
        [40.0, 40, 60, 50],  # apart both ways
        [40.0, 12, 60, 18],  # apart along x
        [30.0, 10, 50, 20],  # touches
        [10.0, 10, 10, 20],  # empty
        [15.0, 12, 20, 18],  # inside
    ],
)
def test_one_pair(other):
    found, wanted = (torch.tensor([BOX, BOX], requires_grad=True) for _ in range(2))
    others = torch.tensor([other, other])
    loss = 1 - generalized_iou(found, others)
    expected = generalized_box_iou_loss(wanted, others)
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_batches_of_pairs():
    low = torch.rand(2, 3, 50, 2) * 20
    a, b = torch.cat([low, low + torch.rand(2, 3, 50, 2) * 20], dim=-1)
    wanted = 1 - generalized_box_iou_loss(a.flatten(0, 1), b.flatten(0, 1))
    torch.testing.assert_close(generalized_iou(a, b), wanted.view(3, 50))
    assert wanted.min() < 0 < wanted.max()
