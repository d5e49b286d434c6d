import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detlite.ops import roi_pool
from detlite.ops.dispatch import compute_dtype
from tests.ops.roi_cases import (
    DTYPES,
    LAYOUTS,
    by_torchvision,
    features,
    odd_rois,
    ordinary_rois,
    pool_on_one_map,
)


@pytest.mark.parametrize(
    ("layout", "channels"),
    [*((layout, 37) for layout in LAYOUTS), *(("channels_last", n) for n in (8, 16, 20, 40))],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_matches_torchvision(device, dtype, layout, channels):
    input = features(dtype, layout, (2, channels, 11, 13)).to(device)
    rois = torch.cat([ordinary_rois(8), odd_rois()]).to(device, compute_dtype(dtype))

    output, argmax = pool_on_one_map(input, rois, 0.25, (3, 4))

    expected, cells = by_torchvision("roi_pool", input, rois, 0.25, 3, 4)
    finite = rois.isfinite().all(1).cpu()
    assert output.dtype == dtype
    assert torch.equal(output.cpu().to(expected.dtype), expected)
    assert torch.equal(argmax[finite].cpu(), cells[finite])
    assert (argmax[~finite] == -1).all()

    maxima, nothing = pool_on_one_map(input, rois, 0.25, (3, 4), need_argmax=False)
    assert torch.equal(maxima, output)
    assert nothing.shape == (0,)
    assert nothing.dtype == torch.int32


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
    output, argmax = pool_on_one_map(input, rois, 1.0, (1, 1))
    assert (output == -torch.inf).all()
    assert (argmax == 0).all()
