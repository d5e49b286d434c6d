import numpy as np
import pytest
import torch
import torchvision
from torch.utils._python_dispatch import TorchDispatchMode

from detlite import _C
from detlite.ops import RoIPool, roi_pool
from tests.ops.oracles import roi_pool as oracle
from tests.ops.roi_cases import (
    DTYPES,
    LAYOUTS,
    OPCHECK_LAYOUTS,
    as_numpy,
    features,
    odd_rois,
    ordinary_rois,
)


def coordinates(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_matches_oracle(device, dtype, layout):
    input = features(dtype, layout).to(device)
    rois = torch.cat([ordinary_rois(8), odd_rois()]).to(device, coordinates(dtype))

    output, argmax = torch.ops.detlite.roi_pool_forward(input, rois, 0.25, 3, 4)

    expected, cells = oracle(as_numpy(input), as_numpy(rois), (3, 4), 0.25)
    assert output.dtype == dtype
    assert argmax.dtype == torch.int32
    np.testing.assert_array_equal(as_numpy(output), expected)
    np.testing.assert_array_equal(argmax.cpu().numpy(), cells)


@pytest.mark.parametrize("channels", [8, 16, 20, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_channels_match_oracle(device, dtype, channels):
    input = features(dtype, "channels_last", (2, channels, 11, 13)).to(device)
    rois = torch.cat([ordinary_rois(8), odd_rois()]).to(device, coordinates(dtype))
    output, argmax = torch.ops.detlite.roi_pool_forward(input, rois, 0.25, 3, 4)
    expected, cells = oracle(as_numpy(input), as_numpy(rois), (3, 4), 0.25)
    np.testing.assert_array_equal(as_numpy(output), expected)
    np.testing.assert_array_equal(argmax.cpu().numpy(), cells)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_maxima_do_not_depend_on_argmax(device, dtype, layout):
    input = features(dtype, layout, (2, 19, 11, 13)).to(device)
    rois = torch.cat([ordinary_rois(8), odd_rois()]).to(device, coordinates(dtype))
    forward = torch.ops.detlite.roi_pool_forward
    expected, _ = forward(input, rois, 0.25, 3, 4)
    output, argmax = forward(input, rois, 0.25, 3, 4, need_argmax=False)
    assert torch.equal(output, expected)
    assert argmax.shape == (0,)
    assert argmax.dtype == torch.int32


def test_argmax_is_stored_only_for_a_gradient(device):
    places = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.detlite.roi_pool_forward.maps:
                places.append(result[1].numel())
            return result

    rois = ordinary_rois(5).to(device)
    plain, differentiated = features().to(device), features().to(device).requires_grad_()
    with Watch():
        roi_pool(plain, rois, 3, 0.25)
        with torch.no_grad():
            roi_pool(differentiated, rois, 3, 0.25)
        output = roi_pool(differentiated, rois, 3, 0.25)
    assert places == [0, 0, output.numel()]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_matches_torchvision_forward_and_backward(device, layout):
    for seed in range(5):
        torch.manual_seed(seed)
        input = features(torch.float32, layout).to(device).requires_grad_()
        rois = ordinary_rois(30).to(device)
        reference = input.detach().contiguous().requires_grad_()

        output = roi_pool(input, rois, (7, 5), 0.25)
        expected = torchvision.ops.roi_pool(reference, rois, (7, 5), 0.25)
        grad = torch.randn_like(expected)
        output.backward(grad)
        expected.backward(grad)

        torch.testing.assert_close(output, expected, rtol=0, atol=0)
        torch.testing.assert_close(input.grad, reference.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_half_gradient_is_summed_in_float32(device, dtype, layout):
    # Every bin picks the one positive cell; 2048 + 1 would be lost in either half type.
    input = torch.zeros(1, 3, 4, 4, dtype=dtype, device=device)
    input[..., 1, 1] = 1
    if layout == "channels_last":
        input = input.contiguous(memory_format=torch.channels_last)
    input.requires_grad_()
    rois = torch.tensor([[0.0, 1, 1, 1, 1]], device=device).repeat(4097, 1)
    roi_pool(input, rois, 1).sum().backward()
    assert (input.grad[..., 1, 1] == torch.tensor(4097.0).to(dtype)).all()


def test_nan_is_the_maximum(device):
    input = torch.zeros(1, 40, 3, 3, device=device)
    input[:, :, 1, 1] = torch.nan
    for x in (input, input.contiguous(memory_format=torch.channels_last)):
        output = roi_pool(x, torch.tensor([[0.0, 0, 0, 2, 2]], device=device), (1, 1))
        assert output.isnan().all()


def test_all_negative_infinity_has_an_argmax(device):
    input = torch.full((1, 3, 2, 2), -torch.inf, device=device)
    rois = torch.tensor([[0.0, 0, 0, 1, 1]], device=device)
    output, argmax = torch.ops.detlite.roi_pool_forward(input, rois, 1.0, 1, 1)
    assert (output == -torch.inf).all()
    assert (argmax == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_format_is_kept(device, layout):
    input = features(layout=layout).to(device).requires_grad_()
    output = roi_pool(input, ordinary_rois().to(device), 7, 0.25)
    (grad,) = torch.autograd.grad(output, input, torch.ones(output.shape, device=device))
    memory_format = torch.channels_last if "channels_last" in layout else torch.contiguous_format
    assert output.is_contiguous(memory_format=memory_format)
    assert grad.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 3, 5, 5), 0), ((0, 3, 5, 5), 0), ((1, 0, 5, 5), 4), ((1, 3, 0, 5), 4)]
)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_empty(device, shape, count, layout):
    input = features(torch.float32, layout, shape).to(device).requires_grad_()
    output = roi_pool(input, torch.zeros(count, 5, device=device), (7, 6))
    output.sum().backward()
    assert output.shape == (count, shape[1], 7, 6)
    assert not output.any()
    assert input.grad.shape == shape
    assert not input.grad.any()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_gradients(device, layout):
    input = features(torch.float64, layout, (2, 2, 5, 6)).to(device).requires_grad_()
    rois = torch.cat([ordinary_rois(3), odd_rois()[:3]]).double().to(device)
    rois[:, 1:] /= 2

    def pool(x):
        return roi_pool(x, rois, (2, 3), 0.25)

    assert torch.autograd.gradcheck(pool, (input,), fast_mode=True)
    assert torch.autograd.gradgradcheck(pool, (input,), fast_mode=True)


@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
def test_opcheck(device, layout):
    input = features(torch.float32, layout, (2, 3, 11, 13)).to(device).requires_grad_()
    rois = ordinary_rois(5).to(device)
    levels = torch.zeros(5, dtype=torch.int64, device=device)
    forward, backward = _C.roi_pool_forward.maps, _C.roi_pool_backward.maps
    pool = [0.25], 3, 2
    torch.library.opcheck(forward, ([input], rois, levels, *pool, True))
    torch.library.opcheck(forward, ([input.detach()], rois, levels, *pool, False))
    _, argmax = forward([input.detach()], rois, levels, *pool, True)
    grad = torch.randn(5, 3, 3, 2, device=device).requires_grad_()
    torch.library.opcheck(backward, (grad, rois, levels, argmax, *pool, 2, 3, [11], [13]))


def test_list_of_boxes_and_module(device):
    input = features().to(device)
    rois = ordinary_rois().to(device)
    rois = rois[rois[:, 0].argsort()]
    boxes = [rois[rois[:, 0] == i, 1:] for i in range(2)]
    module = RoIPool((7, 5), 0.25)
    assert torch.equal(module(input, boxes), roi_pool(input, rois, (7, 5), 0.25))
    assert "output_size=(7, 5)" in repr(module)


def test_traces_to_one_graph(device):
    input = features().to(device)
    rois = ordinary_rois().to(device)
    traced = torch.compile(RoIPool(7, 0.25), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(input, rois), roi_pool(input, rois, 7, 0.25))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input": torch.zeros(3, 5, 5)}, RuntimeError, "input must have 4 dimensions"),
        ({"input": torch.zeros(1, 3, 5, 5).int()}, RuntimeError, "input must be float64"),
        ({"boxes": torch.zeros(2, 4)}, ValueError, r"boxes must have shape \[K, 5\]"),
        ({"boxes": torch.ones(2, 5)}, RuntimeError, r"rois\[0, 0\] is batch index 1"),
        ({"output_size": (7, 0)}, RuntimeError, "pooled_width must be from 1"),
        ({"spatial_scale": 0.0}, RuntimeError, "spatial_scale must be a positive number"),
    ],
)
def test_invalid_arguments_are_named(change, error, message):
    good = {"input": torch.zeros(1, 3, 5, 5), "boxes": torch.zeros(2, 5), "output_size": 7}
    with pytest.raises(error, match=message):
        roi_pool(**{**good, **change})


@pytest.mark.parametrize(
    ("argmax", "message"),
    [
        (torch.zeros(2, 3, 7, 7), "argmax must be int32, got float32"),
        (torch.zeros(2, 3, 7, 6).int(), "argmax must have the shape of grad"),
        (torch.full((2, 3, 7, 7), 25).int(), "argmax must be from -1 to 24, got 25"),
        (torch.full((2, 3, 7, 7), -2).int(), "argmax must be from -1 to 24, got -2"),
    ],
)
def test_invalid_argmax_is_rejected(argmax, message):
    with pytest.raises(RuntimeError, match=message):
        torch.ops.detlite.roi_pool_backward(
            torch.zeros(2, 3, 7, 7), torch.zeros(2, 5), argmax, 1.0, 7, 7, 1, 3, 5, 5
        )
