"""Tests of the fallbacks of RoIAlign and RoIPool."""

import pytest
import torch

from detlite import ops
from detlite.ops import dispatch
from detlite.ops.fallbacks import roi_align
from tests.ops.roi_cases import features, odd_rois, ordinary_rois


@pytest.mark.parametrize("aligned", [False, True])
def test_huge_rois_use_fewer_samples(monkeypatch, aligned):
    x, boxes = features(), torch.cat([ordinary_rois(9), odd_rois()[:3]])
    expected = ops.roi_align(x, boxes, 3, 0.25, 0, aligned)
    monkeypatch.setattr(roi_align, "_MAX_SAMPLES", 40)
    with dispatch.use_fallback_ops():
        actual = ops.roi_align(x, boxes, 3, 0.25, 0, aligned)
    cells = ((boxes[:, 3:] - boxes[:, 1:3]) * 0.25).clamp(min=1).prod(dim=1)
    assert 0 < (cells > 40).sum() < len(cells)
    torch.testing.assert_close(actual[cells <= 40], expected[cells <= 40])
    assert actual.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_accumulate_in_float32(dtype):
    """A sum of 64 x 64 samples in half precision would stop growing."""
    x, rois = torch.ones(1, 1, 64, 64, dtype=dtype), torch.tensor([[0.0, 0, 0, 64, 64]])
    with dispatch.use_fallback_ops():
        pooled = ops.roi_align(x, rois, 1, 1.0, 64, True)
    assert pooled.dtype == dtype
    assert pooled.item() == 1
