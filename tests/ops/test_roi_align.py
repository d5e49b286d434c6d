import numpy as np
import pytest
import torch
import torchvision

from detlite import _C
from detlite.ops import RoIAlign, roi_align
from tests.ops.oracles import roi_align as oracle
from tests.ops.roi_cases import (
    DTYPES,
    LAYOUTS,
    OPCHECK_LAYOUTS,
    TOLERANCE,
    as_numpy,
    features,
    odd_rois,
    ordinary_rois,
)

FORMS = [(2, False), (2, True), (-1, False), (0, True), (3, True)]  # sampling ratio, aligned


def coordinates(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@pytest.mark.parametrize(("sampling_ratio", "aligned"), FORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_matches_oracle(device, dtype, layout, sampling_ratio, aligned):
    input = features(dtype, layout).to(device)
    rois = ordinary_rois(12, coordinates(dtype)).to(device)

    output = roi_align(input, rois, (3, 4), 0.25, sampling_ratio, aligned)

    expected = oracle(as_numpy(input), as_numpy(rois), (3, 4), 0.25, sampling_ratio, aligned)
    assert output.dtype == dtype
    np.testing.assert_allclose(
        as_numpy(output), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("channels", [8, 16, 20, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_channels_match_oracle(device, dtype, channels):
    input = features(dtype, "channels_last", (2, channels, 11, 13)).to(device)
    rois = ordinary_rois(12, coordinates(dtype)).to(device)
    expected = oracle(as_numpy(input), as_numpy(rois), (3, 4), 0.25, 0, True)
    np.testing.assert_allclose(
        as_numpy(roi_align(input, rois, (3, 4), 0.25, 0, True)),
        expected,
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


@pytest.mark.parametrize(("sampling_ratio", "aligned"), [*FORMS, (100, False)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_odd_boxes_match_oracle(device, fallback, dtype, layout, sampling_ratio, aligned):
    input = features(dtype, layout, (2, 3, 11, 13)).to(device)
    rois = odd_rois(dtype).to(device)
    if fallback:  # it uses fewer samples for the box of 5000 x 5000 cells
        rois = rois[(rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2]) < 1e8]

    output = roi_align(input, rois, (3, 2), 0.25, sampling_ratio, aligned)

    expected = oracle(as_numpy(input), as_numpy(rois), (3, 2), 0.25, sampling_ratio, aligned)
    assert output.isfinite().all()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3  # of positions thousands of cells away
    np.testing.assert_allclose(as_numpy(output), expected, rtol=tolerance, atol=tolerance)


def test_whole_cells_need_no_extra_sample(device):
    # Each bin is a whole number of cells long, but for the rounding of its corners.
    corner = torch.rand(300, 2) * 90
    side = 70 * torch.randint(1, 4, (300, 2))
    rois = torch.cat([torch.zeros(300, 1), corner, corner + side], dim=1)
    x = torch.randn(1, 5, 30, 30)
    actual = roi_align(x.to(device), rois.to(device), 7, 0.1, sampling_ratio=0, aligned=True)
    expected = torchvision.ops.roi_align(x, rois, 7, 0.1, sampling_ratio=0, aligned=True)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1e9, 1e20, 3e38])
def test_huge_boxes_are_fast(device, size):
    input = torch.ones(1, 1, 4, 4, device=device)
    rois = torch.tensor([[0, -size, -size, size, size]], device=device)
    output = roi_align(input, rois, 3, 1.0, 0, True)
    assert ((output >= 0) & (output <= 1)).all()


@pytest.mark.parametrize(("sampling_ratio", "aligned"), FORMS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_matches_torchvision_forward_and_backward(device, layout, sampling_ratio, aligned):
    for seed in range(5):
        torch.manual_seed(seed)
        input = features(torch.float32, layout).to(device).requires_grad_()
        rois = ordinary_rois(30).to(device)
        reference = input.detach().contiguous().requires_grad_()

        output = roi_align(input, rois, (7, 5), 0.25, sampling_ratio, aligned)
        expected = torchvision.ops.roi_align(reference, rois, (7, 5), 0.25, sampling_ratio, aligned)
        grad = torch.randn_like(expected)
        output.backward(grad)
        expected.backward(grad)

        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(input.grad, reference.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_half_is_one_rounding_of_float32(device, dtype, layout):
    input = features(dtype, layout).to(device).requires_grad_()
    wide = input.detach().float().requires_grad_()
    rois = ordinary_rois().to(device)
    output, expected = (roi_align(x, rois, 7, 0.25, 2, True) for x in (input, wide))
    grad = torch.randn_like(output)
    output.backward(grad)
    expected.backward(grad.float())

    torch.testing.assert_close(output, expected.to(dtype), rtol=0, atol=0)
    # On CUDA the order of the sums, and with it the last bit, may vary.
    torch.testing.assert_close(input.grad, wide.grad.to(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_format_is_kept(device, layout):
    input = features(layout=layout).to(device).requires_grad_()
    output = roi_align(input, ordinary_rois().to(device), 7, 0.25)
    # A contiguous gradient, as a flattening layer hands back.
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
    rois = torch.zeros(count, 5, device=device)
    output = roi_align(input, rois, (7, 6))
    output.sum().backward()
    assert output.shape == (count, shape[1], 7, 6)
    assert not output.any()
    assert input.grad.shape == shape
    assert not input.grad.any()


def test_many_threads_agree_with_one():
    input = features(shape=(2, 70, 20, 20)).requires_grad_()
    rois = ordinary_rois(50)
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        output = roi_align(input, rois, 7, 0.25, 2)
        results.append((output, *torch.autograd.grad(output.square().sum(), input)))
    torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("sampling_ratio", "aligned"), [(2, False), (0, True)])
def test_gradients(device, layout, sampling_ratio, aligned):
    input = features(torch.float64, layout, (2, 2, 5, 6)).to(device).requires_grad_()
    rois = torch.cat([ordinary_rois(3), odd_rois()[:3]]).double().to(device)
    rois[:, 1:] /= 2

    def pool(x):
        return roi_align(x, rois, (2, 3), 0.25, sampling_ratio, aligned)

    assert torch.autograd.gradcheck(pool, (input,), fast_mode=True)
    assert torch.autograd.gradgradcheck(pool, (input,), fast_mode=True)


@pytest.mark.parametrize("layout", OPCHECK_LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(device, layout, dtype):
    input = features(dtype, layout, (2, 3, 11, 13)).to(device).requires_grad_()
    rois = ordinary_rois(5).to(device)
    levels = torch.zeros(5, dtype=torch.int64, device=device)
    forward, backward = _C.roi_align_forward.maps, _C.roi_align_backward.maps
    torch.library.opcheck(forward, ([input], rois, levels, [0.25], 3, 2, 2, True))
    grad = torch.randn(5, 3, 3, 2, dtype=dtype, device=device).requires_grad_()
    torch.library.opcheck(backward, (grad, rois, levels, [0.25], 3, 2, 2, 3, [11], [13], 0, False))


def test_autocast_needs_no_cast(device):
    input = features().to(device)
    rois = ordinary_rois().to(device)
    rois[:, 1:] += 1001.3  # where bfloat16 coordinates would move by cells
    shifted = torch.zeros(2, 37, 270, 270, device=device)
    shifted[:, :, 250:261, 250:263] = input
    with torch.autocast(device, dtype=torch.bfloat16):
        half = torch.nn.functional.conv2d(shifted, torch.eye(37, device=device)[:, :, None, None])
        output = roi_align(half, rois, 7, 0.25, 2)
    assert half.dtype == output.dtype == torch.bfloat16
    assert output.any()
    expected = roi_align(half.float(), rois, 7, 0.25, 2)
    torch.testing.assert_close(output, expected.bfloat16(), rtol=0, atol=0)


def test_traces_to_one_graph(device):
    input = features().to(device).requires_grad_()
    rois = ordinary_rois().to(device)

    def pool(x, boxes):
        return roi_align(x * 2, boxes, 7, 0.25, 2).relu()

    traced = torch.compile(pool, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(input, rois), pool(input, rois))
    (grad,) = torch.autograd.grad(traced(input, rois).sum(), input)
    (expected,) = torch.autograd.grad(pool(input, rois).sum(), input)
    torch.testing.assert_close(grad, expected)


def test_list_of_boxes_and_module(device):
    input = features().to(device)
    rois = ordinary_rois().to(device)
    rois = rois[rois[:, 0].argsort()]
    boxes = [rois[rois[:, 0] == i, 1:] for i in range(2)]
    module = RoIAlign(7, 0.25, 2, True)
    expected = roi_align(input, rois, (7, 7), 0.25, 2, True)
    assert torch.equal(module(input, boxes), expected)
    assert torch.equal(roi_align(input, [b.double() for b in boxes], 7, 0.25, 2, True), expected)
    assert "sampling_ratio=2" in repr(module)
    assert roi_align(input[:0], [], 7).shape == (0, 37, 7, 7)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"input": torch.zeros(3, 5, 5)}, RuntimeError, "input must have 4 dimensions"),
        ({"input": torch.zeros(1, 3, 5, 5).int()}, RuntimeError, "input must be float64"),
        ({"boxes": torch.zeros(2, 4)}, ValueError, r"boxes must have shape \[K, 5\]"),
        ({"boxes": [torch.zeros(2, 4)] * 2}, ValueError, "each of 1 images, got 2"),
        ({"boxes": [torch.zeros(2, 5)]}, ValueError, r"boxes\[0\] must have shape"),
        ({"boxes": torch.ones(2, 5)}, RuntimeError, r"rois\[0, 0\] is batch index 1"),
        ({"boxes": torch.tensor([[-2.0, 0, 0, 1, 1]])}, RuntimeError, "batch index -2"),
        ({"boxes": torch.tensor([[-0.5, 0, 0, 1, 1]])}, RuntimeError, "batch index -0.5"),
        ({"boxes": torch.full((1, 5), torch.nan)}, RuntimeError, "batch index nan"),
        ({"output_size": (0, 7)}, RuntimeError, "pooled_height must be from 1"),
        ({"output_size": (7, -1)}, RuntimeError, "pooled_width must be from 1"),
        ({"output_size": (7, 7, 7)}, ValueError, "output_size must be one number or two"),
        ({"spatial_scale": -1.0}, RuntimeError, "spatial_scale must be a positive number"),
        ({"spatial_scale": torch.nan}, RuntimeError, "spatial_scale must be a positive number"),
        ({"sampling_ratio": 2**40}, RuntimeError, "sampling_ratio must be from 1"),
    ],
)
def test_invalid_arguments_are_named(change, error, message):
    good = {"input": torch.zeros(1, 3, 5, 5), "boxes": torch.zeros(2, 5), "output_size": 7}
    with pytest.raises(error, match=message):
        roi_align(**{**good, **change})


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, torch.zeros(2, 3, 7, 6), "grad must have shape"),
        (1, torch.zeros(2, 5).double(), "rois must be float32 for float32 grad, got float64"),
        (5, -1, "batch_size must be from 0"),
        (7, -1, "height must be from 0"),
        (8, 2**40, "width must be from 0"),
    ],
)
def test_invalid_backward_arguments_are_named(index, value, message):
    arguments = [torch.zeros(2, 3, 7, 7), torch.zeros(2, 5), 1.0, 7, 7, 1, 3, 5, 5, 2]
    torch.ops.detlite.roi_align_backward(*arguments)
    arguments[index] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.detlite.roi_align_backward(*arguments)
