"""Results are the same to the last bit for any number of threads."""

import pytest
import torch

from detlite import ops
from tests.builders import random_boxes

SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def suppression(*shape):
    return random_boxes(*shape, extent=400.0), torch.rand(shape), torch.randint(0, 9, shape)


def nms():
    boxes, scores, _ = suppression(4000)
    return lambda: [ops.nms(boxes, scores, 0.5)]


def batched_nms():
    arguments = suppression(4000)
    return lambda: [ops.batched_nms(*arguments, 0.5)]


def padded_nms():
    arguments = *suppression(3, 3000), torch.rand(3, 3000) > 0.1
    return lambda: ops.padded_nms(*arguments, 0.5, 2000)


def match_boxes():
    truth, valid = random_boxes(2, 50, extent=400.0), torch.rand(2, 50) > 0.2
    candidates = random_boxes(7000, extent=400.0).round()
    return lambda: ops.match_boxes(truth, valid, candidates)


def roi_align():
    maps = [torch.randn(2, 70, 40 >> n, 48 >> n, requires_grad=True) for n in range(4)]
    rois = torch.cat([torch.randint(0, 2, (60, 1)), random_boxes(60, sides=(8, 900))], dim=1)

    def run():
        output = ops.pyramid_roi_align(maps, rois, 7, SCALES, 2)
        return [output, *torch.autograd.grad(output.square().sum(), maps)]

    return run


@pytest.mark.parametrize("make", [nms, batched_nms, padded_nms, match_boxes, roi_align])
def test_many_threads_agree_with_one(make):
    run, before, results = make(), torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(run())
    torch.set_num_threads(before)
    assert any(x.any() for x in results[0])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
