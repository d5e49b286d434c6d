"""Compare thousands of random cases with torchvision and with the slow oracles."""

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

from detlite.ops import batched_nms, nms, roi_align, roi_pool
from tests.ops.oracles import batched_nms as nms_oracle

pytestmark = pytest.mark.slow
many = settings(max_examples=300, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def regions(draw):
    """A map of any layout and boxes of many sizes, on it and off it."""
    generator = torch.Generator().manual_seed(draw(seeds))
    n, c = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 16, 31, 33, 80]))
    h, w = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    x = torch.randn(n, c, h, w, generator=generator)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    count, scale = draw(st.integers(0, 12)), draw(st.sampled_from([0.125, 0.25, 0.3, 1.0]))
    extent = torch.tensor([w, h]) / scale
    corner = (torch.rand(count, 2, generator=generator) * 1.4 - 0.2) * extent
    side = torch.rand(count, 2, generator=generator) ** 2 * extent * draw(st.floats(-0.2, 3))
    image = torch.randint(0, n, (count, 1), generator=generator)
    rois = torch.cat([image, corner, corner + side], dim=1)
    return x, rois, draw(st.tuples(st.integers(1, 9), st.integers(1, 9))), scale


@many
@given(case=regions(), sampling=st.integers(-1, 4), aligned=st.booleans())
def test_roi_align_matches_torchvision(case, sampling, aligned):
    x, rois, size, scale = case
    ours = x.clone().requires_grad_()
    theirs = x.contiguous().requires_grad_()
    output = roi_align(ours, rois, size, scale, sampling, aligned)
    expected = torchvision.ops.roi_align(theirs, rois, size, scale, sampling, aligned)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(expected)
    output.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@many
@given(case=regions())
def test_roi_pool_matches_torchvision(case):
    x, rois, size, scale = case
    ours = x.clone().requires_grad_()
    theirs = x.contiguous().requires_grad_()
    output = roi_pool(ours, rois, size, scale)
    expected = torchvision.ops.roi_pool(theirs, rois, size, scale)
    assert torch.equal(output, expected)
    grad = torch.randn_like(expected)
    output.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad)


def boxes_of(generator: torch.Generator, count: int, extent: float, spread: float) -> torch.Tensor:
    """Centres over the extent, sides over several orders of magnitude."""
    center = torch.rand(count, 2, generator=generator) * extent
    side = 20 * torch.exp(spread * torch.randn(count, 2, generator=generator))
    return torch.cat([center - side / 2, center + side / 2], dim=1)


@many
@given(
    seed=seeds,
    count=st.integers(0, 600),
    extent=st.sampled_from([1.0, 50.0, 400.0, 1e5]),
    spread=st.floats(0, 3),
    threshold=st.floats(0, 1),
)
def test_nms_matches_torchvision(seed, count, extent, spread, threshold):
    generator = torch.Generator().manual_seed(seed)
    boxes = boxes_of(generator, count, extent, spread)
    scores = torch.randperm(count, generator=generator).float()
    expected = torchvision.ops.nms(boxes, scores, threshold)
    assert torch.equal(nms(boxes, scores, threshold), expected)


@settings(max_examples=100, deadline=None)
@given(
    seed=seeds,
    count=st.integers(0, 300),
    groups=st.integers(1, 4),
    size=st.sampled_from([1e-25, 1e-19, 1.0, 1e18, 1e25]),  # areas that round, or are no numbers
    threshold=st.floats(0, 1),
)
def test_nms_of_extreme_sizes_matches_oracle(seed, count, groups, size, threshold):
    generator = torch.Generator().manual_seed(seed)
    boxes = boxes_of(generator, count, 50, 1) * size
    scores = torch.randint(0, 20, (count,), generator=generator).float()
    idxs = torch.randint(-1, groups - 1, (count,), generator=generator)
    expected = nms_oracle(boxes.numpy(), scores.numpy(), idxs.numpy(), np.float64(threshold))
    assert batched_nms(boxes, scores, idxs, threshold).tolist() == expected
