"""detlite._C: the operators with the names and argument orders of maskrcnn-benchmark's _C."""

import pytest
import torch

from detlite import _C, ops
from tests.ops.roi_cases import features, ordinary_rois

NAMES = [
    "batched_nms",
    "crop_masks",
    "heatmap_peaks",
    "match_boxes",
    "nms",
    "padded_nms",
    "paste_masks_rle",
    "roi_align_backward",
    "roi_align_forward",
    "roi_pool_backward",
    "roi_pool_forward",
    "sigmoid_focal_loss_backward",
    "sigmoid_focal_loss_forward",
]


def test_module_has_all_operators():
    assert [name for name in dir(_C) if not name.startswith("__")] == NAMES
    assert all(getattr(_C, name) is getattr(torch.ops.detlite, name) for name in NAMES)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'roi_allign'"):
        _ = _C.roi_allign


def test_results_match_the_python_functions():
    input, rois = features(), ordinary_rois()
    boxes, scores = rois[:, 1:].contiguous(), torch.rand(len(rois))
    assert torch.equal(_C.nms(boxes, scores, 0.3), ops.nms(boxes, scores, 0.3))

    pooled = _C.roi_align_forward(input, rois, 0.25, 7, 7, 2)
    assert torch.equal(pooled, ops.roi_align(input, rois, 7, 0.25, 2))
    # Pooling is linear, so <grad, input> = <pooled, pooled>.
    grad = _C.roi_align_backward(pooled, rois, 0.25, 7, 7, *input.shape, 2)
    torch.testing.assert_close((grad * input).sum(), pooled.square().sum())

    pooled, argmax = _C.roi_pool_forward(input, rois, 0.25, 7, 7)
    assert torch.equal(pooled, ops.roi_pool(input, rois, 7, 0.25))
    grad = _C.roi_pool_backward(pooled, rois, argmax, 0.25, 7, 7, *input.shape)
    torch.testing.assert_close((grad * input).sum(), pooled.square().sum())


def test_single_map_operators_are_differentiable_and_compile_to_one_graph():
    input, rois = features().requires_grad_(), ordinary_rois()

    def pool(input, rois):
        aligned = _C.roi_align_forward(input, rois, 0.25, 7, 7, 2, aligned=True)
        maximum, _ = _C.roi_pool_forward(input, rois, 0.25, 7, 7)
        return aligned + maximum

    expected = ops.roi_align(input, rois, 7, 0.25, 2, True) + ops.roi_pool(input, rois, 7, 0.25)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), input)
    for function in (pool, torch.compile(pool, fullgraph=True, backend="aot_eager")):
        output = function(input, rois)
        assert torch.equal(output, expected)
        (grad,) = torch.autograd.grad(output.square().sum(), input)
        torch.testing.assert_close(grad, expected_grad)


def test_unknown_capability_raises(monkeypatch):
    monkeypatch.setenv("DETLITE_CPU_CAPABILITY", "sse9")
    # The focal loss reads the variable outside of its parallel loop. torch 2.11 loses the message
    # of an exception inside a parallel loop.
    with pytest.raises(
        RuntimeError, match=r"'sse9', but this processor and build support .*default"
    ):
        ops.sigmoid_focal_loss(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
