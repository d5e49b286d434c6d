"""Tests of the fallback of matching."""

import torch

from detlite import ops
from detlite.ops import dispatch
from detlite.ops.fallbacks import matching
from tests.ops.roi_cases import ordinary_rois


def test_blocks_of_ground_truth_produce_the_same_matches(monkeypatch):
    truth, candidates = ordinary_rois(60)[:, 1:].view(2, 30, 4), ordinary_rois(50)[:, 1:]
    valid = torch.rand(2, 30) > 0.3
    expected = ops.match_boxes(truth, valid, candidates)
    for limit in (1, 700, 1 << 22):
        monkeypatch.setattr(matching, "_MAX_OVERLAPS", limit)
        actual = dispatch.FALLBACKS["match_boxes"](truth, valid, candidates)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
