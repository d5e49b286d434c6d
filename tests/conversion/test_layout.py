"""State dicts brought into our order."""

from __future__ import annotations

import pytest
import torch

from detlite.conversion.layout import ratios_slowest


@pytest.mark.parametrize(
    ("anchors", "ratios", "order"),
    [
        (3, None, [0, 1, 2]),
        (6, None, [0, 3, 1, 4, 2, 5]),  # two sizes of three ratios
        (5, None, [0, 1, 2, 3, 4]),  # one size of five
        (8, 4, [0, 4, 1, 5, 2, 6, 3, 7]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ratios_become_slowest(anchors, ratios, order):
    state = {
        "rpn.head.cls_logits.weight": torch.randn(anchors, 7, 1, 1),
        "rpn.head.cls_logits.bias": torch.randn(anchors),
        "rpn.head.bbox_pred.weight": torch.randn(4 * anchors, 7, 1, 1),
        "rpn.head.bbox_pred.bias": torch.randn(4 * anchors),
    }
    before = dict(state)
    ratios_slowest(state, ratios)
    for name, values in before.items():
        wanted = values.unflatten(0, (anchors, -1))[order].flatten(0, 1)
        assert torch.equal(state[name], wanted), name
