"""Test RoIs: assignment to levels, padding, invalid arguments, precision and graphs."""

import math
import subprocess
import sys
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
from tests.ops.roi_cases import FORMS, LAYOUTS, features, odd_rois, ordinary_rois

SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]
OPERATORS = [pyramid_roi_align, pyramid_roi_pool]


# ---- the rule


@pytest.mark.parametrize("side", [1e-3, 55, 111.9, 112, 224, 447.9, 448, 895, 896, 5000, 1e15])
def test_level_of_a_square(side):
    expected = min(max(4 + math.floor(math.log2(side / 224) + 1e-9), 2), 5) - 2
    assert assign_levels(torch.tensor([[0.0, 0, side, side]]), SCALES).tolist() == [expected]


def test_level_follows_from_the_area():
    boxes = torch.tensor(
        [[0.0, 0, 56, 896], [0, 0, 0, 50], [0, 0, 1e30, 1e30], [9, 0, 0, 9], [math.nan, 0, 9, 9]]
    )
    assert assign_levels(boxes, SCALES).tolist() == [2, 0, 3, 0, 0]


def test_levels_follow_the_paper():
    corner = torch.rand(2000, 2) * 150
    boxes = torch.cat([corner, corner + 2 ** (3 + 7 * torch.rand(2000, 1)) * torch.ones(2)], dim=1)
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    published = (4 + (side / 224 + 1e-6).log2()).floor().clamp(2, 5).long() - 2
    assert torch.equal(assign_levels(boxes, SCALES), published)


@pytest.mark.parametrize("scales", [[0.25, 0.0], [-1.0, 1.0], [math.inf, 1.0], [1.0, math.nan]])
def test_scales_must_be_positive(scales):
    with pytest.raises(ValueError, match="spatial_scales must be positive, got"):
        assign_levels(torch.ones(1, 4), scales)


def test_kernels_use_the_assigned_levels(device):
    # Each map contains its number.
    maps = [torch.full((1, 1, 64, 64), float(level), device=device) for level in range(4)]
    sides = torch.cat([2 ** torch.linspace(-3, 12, 500), torch.tensor([0, 56, 112, 224, 448.0])])
    boxes = torch.stack([-sides / 2, -sides / 2, sides / 2, sides / 2], dim=1) + 1
    rois = torch.cat([torch.zeros(len(boxes), 1), boxes], dim=1).to(device)
    # A single bin of a single sample, at the center.
    pooled = pyramid_roi_align(maps, rois, 1, SCALES, 1, True)
    assert torch.equal(pooled.flatten().cpu().round().long(), assign_levels(boxes, SCALES))


@pytest.mark.parametrize("op", OPERATORS)
def test_levels_may_be_given(device, op):
    maps = [torch.full((2, 3, 8, 8), float(level), device=device) for level in range(4)]
    rois = torch.tensor([[1.0, 2, 2, 4, 4]], device=device).repeat(6, 1)
    levels = torch.tensor([3, 0, 2, 2, 1, 0], device=device)
    pooled = op(maps, rois, 1, [1.0] * 4, levels=levels)
    assert torch.equal(pooled[:, 1, 0, 0], levels.float())


# ---- padding


def two_maps(dtype, layout, device):
    maps = [features(dtype, layout, (2, 37, *size)).to(device) for size in ((11, 13), (6, 7))]
    return [x.requires_grad_() for x in maps]


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (torch.float32, "channels_last"),
        pytest.param(torch.float32, "contiguous", marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, "channels_last", marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, "contiguous", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("op", OPERATORS)
def test_padding_changes_nothing(device, op, layout, dtype):
    maps = two_maps(dtype, layout, device)
    # A box of an image, padding, and one without a level.
    rois = torch.cat([ordinary_rois(20), odd_rois()]).to(device)
    levels = torch.arange(len(rois), device=device) % 2
    padding = torch.arange(len(rois), device=device) % 3 == 1
    padded, unused = rois.clone(), levels.clone()
    padded[padding, 0], unused[padding] = -1, 7

    def results(rois, levels, keep):
        """The pooled features, and those of the first and second derivative."""
        output = op(maps, rois, (3, 2), [1 / 4, 1 / 8], levels=levels)
        torch.manual_seed(1)
        weights = torch.randn(len(padding), 37, 3, 2, device=device).to(dtype)[keep]
        weights.requires_grad_()
        grads = torch.autograd.grad((output * weights).sum(), maps, create_graph=True)
        loss = sum((x * torch.randn_like(x)).sum() for x in grads)
        (second,) = torch.autograd.grad(loss, weights)
        return output, grads, second

    output, grads, second = results(padded, unused, slice(None))
    expected, expected_grads, expected_second = results(rois[~padding], levels[~padding], ~padding)
    for actual, wanted in ((output, expected), (second, expected_second)):
        assert actual[padding].eq(0).all()
        assert torch.equal(actual[~padding], wanted)
        assert wanted.any()
    for grad, wanted in zip(grads, expected_grads, strict=True):
        assert torch.equal(grad, wanted)


@pytest.mark.parametrize("images", [0, 2])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("op", OPERATORS)
def test_padding_alone(device, op, layout, images):
    x = features(torch.float32, layout)[:images].to(device).requires_grad_()
    rois = torch.tensor([[-1.0, 0, 0, 20, 20], [-1, 0, 0, math.nan, 5]], device=device)
    output = op([x], rois, 7, [0.25])
    (grad,) = torch.autograd.grad(output.sum(), x)
    assert output.shape == (2, 37, 7, 7)
    assert not output.any()
    assert not grad.any()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_padding_has_no_argmax(device, layout):
    rois = ordinary_rois(6).to(device)
    rois[::2, 0] = -1
    _, argmax = _C.roi_pool_forward(features(layout=layout).to(device), rois, 1.0, 3, 3)
    assert (argmax[::2] == -1).all()
    assert (argmax[1::2] >= 0).any()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("image", "level"), [(2.0, 0), (-2.0, 0), (-0.5, 0), (math.nan, 0), (0.0, 2), (0.0, -1)]
)
@pytest.mark.parametrize("op", ["align", "pool"])
def test_invalid_image_and_level_are_rejected(device, op, image, level, backward):
    if device == "cuda":
        pytest.skip("an assertion on the device ends the CUDA context: see the test below")
    maps = [torch.ones(2, 3, 9, 9), torch.ones(2, 3, 5, 5)]
    rois, levels = torch.tensor([[0, 0, 0, 4, 4], [image, 0, 0, 4, 4]]), torch.tensor([0, level])
    where, pool, grad = (rois, levels), ([1.0, 0.5], 2, 2), torch.ones(2, 3, 2, 2)
    sizes = 2, 3, [9, 5], [9, 5]
    argmax = torch.zeros(2, 3, 2, 2, dtype=torch.int32)
    calls = {
        ("align", False): lambda: _C.roi_align_forward.maps(maps, *where, *pool, 2, True),
        ("align", True): lambda: _C.roi_align_backward.maps(grad, *where, *pool, *sizes, 2, True),
        ("pool", False): lambda: _C.roi_pool_forward.maps(maps, *where, *pool, True),
        ("pool", True): lambda: _C.roi_pool_backward.maps(grad, *where, argmax, *pool, *sizes),
    }
    with pytest.raises(RuntimeError):
        calls[op, backward]()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("image", "level", "message"),
    [(2, 0, "a batch index is outside of the batch"), (0, 1, "a level does not exist")],
)
def test_invalid_indices_assert_on_cuda(image, level, message):
    program = f"""
import torch
from detlite import _C
maps, levels = [torch.ones(2, 3, 9, 9, device="cuda")], torch.tensor([{level}], device="cuda")
rois = torch.tensor([[{image}, 0, 0, 4, 4.0]], device="cuda")
_C.roi_align_forward.maps(maps, rois, levels, [1.0], 2, 2, 2, True)
torch.cuda.synchronize()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode != 0
    assert message in ended.stderr


# ---- both operators


POOLS = [
    *(partial(roi_align, sampling_ratio=ratio, aligned=aligned) for ratio, aligned in FORMS),
    roi_pool,
]
REFERENCES = [
    *(partial(torchvision.ops.roi_align, **pool.keywords) for pool in POOLS[:-1]),
    torchvision.ops.roi_pool,
]


@pytest.mark.parametrize(("pool", "reference"), [*zip(POOLS, REFERENCES, strict=True)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_matches_torchvision_forward_and_backward(device, layout, pool, reference):
    for seed in range(5):
        torch.manual_seed(seed)
        own = features(torch.float32, layout).to(device).requires_grad_()
        other = own.detach().contiguous().requires_grad_()
        rois = ordinary_rois(30).to(device)
        output, expected = pool(own, rois, (7, 5), 0.25), reference(other, rois, (7, 5), 0.25)
        grad = torch.randn_like(expected)
        output.backward(grad)
        expected.backward(grad)
        tolerance = 0 if pool is roi_pool else 1e-5
        torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=10 * tolerance + 1e-5)


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
    assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)


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
    rois = ordinary_rois(700, dtype)
    rois[:, 0] = torch.randint(0, 3, (700,))
    rois = rois.to(device)
    for ours, theirs in zip(POOLS[-1:] + POOLS[:1], REFERENCES[-1:] + REFERENCES[:1], strict=True):
        own, exact = x.clone().requires_grad_(), x.cpu().double().clone().requires_grad_()
        output, expected = ours(own, rois, 5, 0.25), theirs(exact, rois.cpu().double(), 5, 0.25)
        grad = torch.randn_like(output)
        (actual,) = torch.autograd.grad(output, own, grad)
        (wanted,) = torch.autograd.grad(expected, exact, grad.cpu().double())
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        torch.testing.assert_close(
            actual.cpu().double(), wanted, rtol=tolerance, atol=10 * tolerance
        )


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
        outputs += [_C.roi_align_forward(maps[0], rois, 0.25, 7, 7, 2)]
        levels = assign_levels(rois[:, 1:], SCALES)
        sizes = 2, 8, [64, 32, 16, 8], [48, 24, 12, 6]
        grad, argmax = outputs[0].detach(), torch.ones(5, 8, 7, 7, device="cuda").int()
        where = rois, levels
        grads = _C.roi_align_backward.maps(grad, *where, SCALES, 7, 7, *sizes, 2, True)
        grads += _C.roi_pool_backward.maps(grad, *where, argmax, SCALES, 7, 7, *sizes)
    assert [x.shape[0] for x in outputs] == [5, 5, 10, 10, 5]
    assert all(x.device.type == "cuda" and x.requires_grad for x in outputs)
    assert [x.shape for x in grads] == [x.shape for x in maps] * 2
    assert all(x.is_contiguous(memory_format=layout) for x in [*outputs, *grads])


@pytest.mark.parametrize("op", OPERATORS)
def test_traces_to_one_graph(op):
    maps = two_maps(torch.float32, "contiguous", "cpu")
    rois = torch.cat([ordinary_rois(20), odd_rois()])
    rois[:10, 1:] *= 6  # some as large as boxes of the second level
    rois[3, 0] = -1
    assert assign_levels(rois[:10, 1:], [1 / 4, 1 / 8]).unique().tolist() == [0, 1]

    def pool(maps, rois):
        return op(maps, rois, 7, [1 / 4, 1 / 8]).relu()

    traced = torch.compile(pool, fullgraph=True, backend="aot_eager")
    assert torch.equal(traced(maps, rois), pool(maps, rois))
    grads = torch.autograd.grad(traced(maps, rois).square().sum(), maps)
    expected = torch.autograd.grad(pool(maps, rois).square().sum(), maps)
    assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
    # Other numbers in the same graph.
    assert torch.equal(traced(maps, rois[:9]), pool(maps, rois[:9]))


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


@pytest.mark.parametrize("op", [roi_align, roi_pool])
def test_boxes_are_constants(op):
    x, rois = torch.rand(1, 2, 8, 8), torch.tensor([[0.0, 1, 1, 6, 6]], requires_grad=True)
    assert not op(x, rois, 2).requires_grad
    op(x.requires_grad_(), [rois[:, 1:]], 2).sum().backward()
    assert rois.grad is None
    assert x.grad is not None
