import sys

import pytest
import torch
import torchvision

from detlite.ops import roi_align
from detlite.ops.dispatch import compute_dtype, use_fallback_ops
from tests.ops.roi_cases import (
    DTYPES,
    FORMS,
    LAYOUTS,
    TOLERANCE,
    by_torchvision,
    features,
    odd_rois,
    ordinary_rois,
)


@pytest.mark.parametrize(
    ("layout", "channels", "sampling_ratio", "aligned"),
    [
        *((layout, 37, *form) for layout in LAYOUTS for form in FORMS),
        *(("channels_last", channels, 0, True) for channels in (8, 16, 20, 40)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_matches_torchvision(device, dtype, layout, channels, sampling_ratio, aligned):
    input = features(dtype, layout, (2, channels, 11, 13)).to(device)
    rois = ordinary_rois(12).to(device, compute_dtype(dtype))

    output = roi_align(input, rois, (3, 4), 0.25, sampling_ratio, aligned)

    form = 0.25, 3, 4, sampling_ratio, aligned
    (expected,) = by_torchvision("roi_align", input, rois, *form)
    assert output.dtype == dtype
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(output.cpu().to(expected.dtype), expected, **tolerance)


@pytest.mark.parametrize(("sampling_ratio", "aligned"), [*FORMS, (70, False)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_odd_boxes_match_torchvision(device, dtype, layout, sampling_ratio, aligned):
    input = features(dtype, layout, (2, 3, 11, 13)).to(device)
    rois = odd_rois(dtype).to(device)

    output = roi_align(input, rois, (3, 2), 0.25, sampling_ratio, aligned)

    sides = rois[:, 3:] - rois[:, 1:3]
    if sampling_ratio <= 0:  # torchvision fails at reversed boxes, and needs 1 GB for a huge one
        is_reversed = (sides < 0).any(1)
        assert not (aligned and output[is_reversed].any())
        kept = ~is_reversed & ~((sides.prod(1) > 1e8) & sides.isfinite().all(1))
        rois, output = rois[kept], output[kept]
    form = 0.25, 3, 2, sampling_ratio, aligned
    (expected,) = by_torchvision("roi_align", input, rois, *form)
    assert output.isfinite().all()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3  # of positions thousands of cells away
    torch.testing.assert_close(output.cpu(), expected, rtol=tolerance, atol=tolerance)


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


@pytest.mark.parametrize("aligned", [False, True])
def test_fallback_takes_fewer_samples_of_huge_rois(monkeypatch, aligned):
    x, boxes = features(), torch.cat([ordinary_rois(9), odd_rois()[:3]])
    expected = roi_align(x, boxes, 3, 0.25, 0, aligned)
    monkeypatch.setattr(sys.modules["detlite.ops.roi_align"], "_MAX_SAMPLES", 40)
    with use_fallback_ops():
        actual = roi_align(x, boxes, 3, 0.25, 0, aligned)
    cells = ((boxes[:, 3:] - boxes[:, 1:3]) * 0.25).clamp(min=1).prod(dim=1)
    assert 0 < (cells > 40).sum() < len(cells)
    torch.testing.assert_close(actual[cells <= 40], expected[cells <= 40])
    assert actual.isfinite().all()
