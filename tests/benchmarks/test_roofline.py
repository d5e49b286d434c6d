from __future__ import annotations

import sys

import pytest
import torch

from benchmarks import roofline as peak
from benchmarks.roofline import flops, matmul_peak, peak_memory
from detlite.apps.batch_predict.allocator import keeps_freed_memory


def test_peak_is_that_of_the_best_product(monkeypatch):
    monkeypatch.setattr(peak, "SHAPES", ((4, 8, 2), (4, 8, 16)))
    seconds = iter([1, 9, 2, 4, 4, 8, 0, 5, 5, 7, 7, 10])  # 8, 2, 4; then 5, 2, 3
    rate = matmul_peak(torch.float32, "cpu", lambda: float(next(seconds)), repeats=2)
    assert rate == max(2 * 4 * 8 * 2 / 2, 2 * 4 * 8 * 16 / 2)


def test_flops_are_those_of_forward_and_backward():
    layer = torch.nn.Conv2d(3, 5, 3, bias=False)
    x = torch.randn(1, 3, 10, 10)
    forward = 2 * 5 * 3 * 9 * 8 * 8
    assert flops(lambda: layer(x)) == forward
    assert flops(lambda: layer(x).sum().backward()) == 2 * forward  # of the weights alone


def holding(megabytes: int):
    return lambda: torch.ones(megabytes * 250_000).sum()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc")
def test_memory_is_what_a_call_takes():
    # The second call may not fit into what the first one has left on the heap, by a few bytes.
    assert 400 < peak_memory(holding, 400, device="cpu") < 880


def only_where(kept: bool):
    assert keeps_freed_memory() == kept
    return lambda: None


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is asked")
def test_freed_memory_is_kept_as_in_this_process(kept: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peak, "keeps_freed_memory", lambda: kept)
    peak_memory(only_where, kept, device="cpu")
    with pytest.raises(AssertionError):
        peak_memory(only_where, not kept, device="cpu")
