"""Tests of the fallback of keypoint decoding."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detlite.ops import dispatch
from detlite.ops.fallbacks import keypoints


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor created."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def test_enlarged_heat_maps_have_bounded_memory(monkeypatch):
    maps, boxes = torch.randn(2, 4, 9, 9), torch.tensor([[0.0, 0, 900, 900], [5, 5, 35, 45]])
    expected = dispatch.FALLBACKS["heatmap_peaks"](maps, boxes)
    monkeypatch.setattr(keypoints, "_MAX_ENLARGED", 1 << 20)
    with LargestTensor() as largest:
        actual = dispatch.FALLBACKS["heatmap_peaks"](maps, boxes)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert 900 * 900 <= largest.numel <= 1 << 20
