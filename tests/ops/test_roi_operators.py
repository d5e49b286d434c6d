"""Test what RoIAlign and RoIPool have in common: layouts, gradients and graphs."""

from functools import partial

import pytest
import torch
import torchvision
from torch._subclasses.fake_tensor import FakeTensorMode

from detlite import _C
from detlite.ops import (
    RoIAlign,
    RoIPool,
    assign_levels,
    pyramid_roi_align,
    pyramid_roi_pool,
    roi_align,
    roi_pool,
    sigmoid_focal_loss,
)
from tests.ops.roi_cases import FORMS, LAYOUTS, SCALES, features, odd_rois, ordinary_rois

OPERATORS = [pyramid_roi_align, pyramid_roi_pool]


POOLS = [
    *(partial(roi_align, sampling_ratio=ratio, aligned=aligned) for ratio, aligned in FORMS),
    roi_pool,
]
REFERENCES = [
    *(partial(torchvision.ops.roi_align, **pool.keywords) for pool in POOLS[:-1]),
    torchvision.ops.roi_pool,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pool", [roi_align, roi_pool])
def test_memory_format_is_kept(device, pool, layout):
    x = features(layout=layout).to(device).requires_grad_()
    output = pool(x, ordinary_rois().to(device), 7, 0.25)
    # A contiguous gradient, as a flattening layer hands back.
    (grad,) = torch.autograd.grad(output, x, torch.ones(output.shape, device=device))
    memory_format = torch.channels_last if "channels_last" in layout else torch.contiguous_format
    assert output.is_contiguous(memory_format=memory_format)
    assert grad.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 3, 5, 5), 0), ((0, 3, 5, 5), 0), ((1, 0, 5, 5), 4), ((1, 3, 0, 5), 4)]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("pool", [roi_align, roi_pool])
def test_empty(device, pool, shape, count, layout):
    x = features(torch.float32, layout, shape).to(device).requires_grad_()
    output = pool(x, torch.zeros(count, 5, device=device), (7, 6))
    output.sum().backward()
    assert output.shape == (count, shape[1], 7, 6)
    assert not output.any()
    assert x.grad.shape == shape
    assert not x.grad.any()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("pool", [POOLS[0], POOLS[3], roi_pool])
def test_gradients(device, pool, layout):
    x = features(torch.float64, layout, (2, 2, 5, 6)).to(device).requires_grad_()
    rois = torch.cat([ordinary_rois(3), odd_rois()[:3]]).double().to(device)
    rois[:, 1:] /= 2
    function = partial(pool, boxes=rois, output_size=(2, 3), spatial_scale=0.25)
    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)


@pytest.mark.parametrize(
    ("module", "pool"),
    [(RoIAlign((7, 5), 0.25, 2, True), POOLS[1]), (RoIPool((7, 5), 0.25), roi_pool)],
)
def test_list_of_boxes_and_module(device, module, pool):
    x, rois = features().to(device), ordinary_rois().to(device)
    rois = rois[rois[:, 0].argsort()]
    boxes = [rois[rois[:, 0] == i, 1:] for i in range(2)]
    expected = pool(x, rois, (7, 5), 0.25)
    assert torch.equal(module(x, boxes), expected)
    assert torch.equal(pool(x, [b.double() for b in boxes], (7, 5), 0.25), expected)
    assert "output_size=(7, 5), spatial_scale=0.25" in repr(module)
    assert pool(x[:0], [], 7).shape == (0, 37, 7, 7)


# ---- gradients of many RoIs on few cells


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [4, 70])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_overlapping_gradients_match_torchvision(device, dtype, channels, layout):
    x = features(dtype, layout, (3, channels, 18, 29)).to(device)
    every = ordinary_rois(300, dtype)
    every[:, 0] = torch.randint(0, 3, (300,))
    counts = [300, 30, 30, 30, 30, 300]  # of the RoIs of each form
    for ours, theirs, count in zip(POOLS, REFERENCES, counts, strict=True):
        rois = every[:count].to(device)
        own, exact = x.clone().requires_grad_(), x.cpu().double().clone().requires_grad_()
        output, expected = ours(own, rois, 5, 0.25), theirs(exact, rois.cpu().double(), 5, 0.25)
        grad, tolerance = torch.randn_like(output), 1e-12 if dtype == torch.float64 else 2e-5
        close = {"rtol": tolerance, "atol": 10 * tolerance}
        torch.testing.assert_close(output.cpu().double(), expected, **close)
        (actual,) = torch.autograd.grad(output, own, grad)
        (wanted,) = torch.autograd.grad(expected, exact, grad.cpu().double())
        torch.testing.assert_close(actual.cpu().double(), wanted, **close)


# ---- tracing


@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling_does_not_synchronize(channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with FakeTensorMode():
        maps = [torch.ones(2, 8, 64 // 2**n, 48 // 2**n, device="cuda") for n in range(4)]
        maps = [x.contiguous(memory_format=layout).requires_grad_() for x in maps]
        rois = torch.ones(5, 5, device="cuda")
        outputs = [op(maps, rois, 7, SCALES) for op in OPERATORS]
        outputs += [op(maps[:1], [rois[:, 1:]] * 2, 7, SCALES[:1]) for op in OPERATORS]
        levels = assign_levels(rois[:, 1:], SCALES)
        sizes = 2, 8, [64, 32, 16, 8], [48, 24, 12, 6]
        grad, argmax = outputs[0].detach(), torch.ones(5, 8, 7, 7, device="cuda").int()
        where = rois, levels
        grads = _C.roi_align_backward.maps(grad, *where, SCALES, 7, 7, *sizes, 2, True)
        grads += _C.roi_pool_backward.maps(grad, *where, argmax, SCALES, 7, 7, *sizes)
    assert [x.shape[0] for x in outputs] == [5, 5, 10, 10]
    assert all(x.device.type == "cuda" and x.requires_grad for x in outputs)
    assert [x.shape for x in grads] == [x.shape for x in maps] * 2
    assert all(x.is_contiguous(memory_format=layout) for x in [*outputs, *grads])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: roi_align(x, torch.tensor([[0.0, 1, 1, 6, 6]]), 2),
        lambda x: roi_pool(x, torch.tensor([[0.0, 1, 1, 6, 6]]), 2),
        lambda x: pyramid_roi_align([x, x], torch.tensor([[0.0, 1, 1, 6, 6]]), 2, [1.0, 0.5]),
        lambda x: roi_align(torch.rand(1, 2, 8, 8), [x[0, 0, :, :4]], 2),
        lambda x: roi_pool(torch.rand(1, 2, 8, 8), [x[0, 0, :, :4]], 2),
        lambda x: sigmoid_focal_loss(x, (x > 0.5).float(), reduction="sum"),
    ],
)
def test_forward_mode_is_refused_not_zero(function):
    x = torch.rand(1, 2, 8, 8)
    with pytest.raises(RuntimeError, match=r"has no derivative in forward mode .*: use reverse"):
        torch.func.jvp(function, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level():
        function(x)  # without a tangent
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="has no derivative in forward mode"):
            function(dual)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: roi_align(x, torch.tensor([[0.0, 1, 1, 6, 6]]).to(x), 2).square().sum(),
        lambda x: roi_pool(x, torch.tensor([[0.0, 1, 1, 6, 6]]).to(x), 2).square().sum(),
        lambda x: sigmoid_focal_loss(x, (x > 0.5).float(), reduction="sum"),
    ],
)
def test_second_derivatives_are_refused(device, function):
    x = torch.rand(1, 2, 8, 8, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(function(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once, not twice"):
        grad.square().sum().backward()


@pytest.mark.parametrize("op", [roi_align, roi_pool])
def test_boxes_are_constants(op):
    x, rois = torch.rand(1, 2, 8, 8), torch.tensor([[0.0, 1, 1, 6, 6]], requires_grad=True)
    assert not op(x, rois, 2).requires_grad
    op(x.requires_grad_(), [rois[:, 1:]], 2).sum().backward()
    assert rois.grad is None
    assert x.grad is not None
