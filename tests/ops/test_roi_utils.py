"""Test RoIs: assignment to levels, padding and invalid arguments."""

import math
import subprocess
import sys

import pytest
import torch

from detlite.ops import assign_levels, pyramid_roi_align, pyramid_roi_pool
from tests.ops.roi_cases import SCALES, features, odd_rois, ordinary_rois, pool_on_one_map, two_maps

OPERATORS = [pyramid_roi_align, pyramid_roi_pool]


# ---- the rule


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


@pytest.mark.parametrize("op", OPERATORS)
def test_levels_may_be_given(device, op):
    maps = [torch.full((2, 3, 8, 8), float(level), device=device) for level in range(4)]
    rois = torch.tensor([[1.0, 2, 2, 4, 4]], device=device).repeat(6, 1)
    levels = torch.tensor([3, 0, 2, 2, 1, 0], device=device)
    pooled = op(maps, rois, 1, [1.0] * 4, levels=levels)
    assert torch.equal(pooled[:, 1, 0, 0], levels.float())


# ---- padding


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
    rois = torch.cat([ordinary_rois(20), odd_rois()[4:]]).to(device)  # none is huge
    levels = torch.arange(len(rois), device=device) % 2
    padding = torch.arange(len(rois), device=device) % 3 == 1
    padded, unused = rois.clone(), levels.clone()
    padded[padding, 0], unused[padding] = -1, 7

    def results(rois, levels, keep):
        """Return the pooled features and their gradients."""
        output = op(maps, rois, (3, 2), [1 / 4, 1 / 8], levels=levels)
        torch.manual_seed(1)
        weights = torch.randn(len(padding), 37, 3, 2, device=device).to(dtype)[keep]
        return output, torch.autograd.grad((output * weights).sum(), maps)

    output, grads = results(padded, unused, slice(None))
    expected, expected_grads = results(rois[~padding], levels[~padding], ~padding)
    assert output[padding].eq(0).all()
    assert torch.equal(output[~padding], expected)
    assert expected.any()
    for grad, wanted in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, wanted)  # sums may have another order


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
    _, argmax = pool_on_one_map(features(layout=layout).to(device), rois, 1.0, (3, 3))
    assert (argmax[::2] == -1).all()
    assert (argmax[1::2] >= 0).any()


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
