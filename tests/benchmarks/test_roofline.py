"""Peak rate of the machine, operations and memory of a call."""

import torch

from benchmarks import roofline
from benchmarks.roofline import count_flops, matmul_peak


def test_peak_is_the_best_rate(monkeypatch):
    monkeypatch.setattr(roofline, "SHAPES", ((4, 8, 2), (4, 8, 16)))
    seconds = iter([1, 9, 2, 4, 4, 8, 0, 5, 5, 7, 7, 10])  # 8, 2, 4; then 5, 2, 3
    rate = matmul_peak(torch.float32, "cpu", lambda: float(next(seconds)), repeats=2)
    assert rate == max(2 * 4 * 8 * 2 / 2, 2 * 4 * 8 * 16 / 2)


def test_flops_of_forward_and_backward():
    layer = torch.nn.Conv2d(3, 5, 3, bias=False)
    x = torch.randn(1, 3, 10, 10)
    forward = 2 * 5 * 3 * 9 * 8 * 8
    assert count_flops(lambda: layer(x)) == forward
    assert count_flops(lambda: layer(x).sum().backward()) == 2 * forward  # only of the weights
