import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as rle_codec

from detlite.ops import paste_masks
from detlite.structures.masks.formats import encode_bitmap
from detlite.structures.masks.pasting import paste_probabilities


def encode_pasted(probs, boxes, size, threshold):
    """The definition: paste, threshold, encode by pycocotools."""
    pasted = (paste_probabilities(probs, boxes, size) >= threshold).numpy()
    return [encode_bitmap(mask) for mask in pasted]


@pytest.mark.parametrize("cells", [1, 2, 7, 28])
@pytest.mark.parametrize("size", [(1, 1), (37, 1), (1, 70), (64, 64), (150, 131)])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_is_the_encoded_paste(device, cells, size, threshold):
    height, width = size
    corner = (torch.rand(15, 2) * 1.6 - 0.4) * torch.tensor([width, height])
    boxes = torch.cat([corner, corner + torch.rand(15, 2) ** 2 * max(size) * 1.5], dim=1)
    probs = torch.rand(15, cells, cells)
    rles = paste_masks(probs.to(device), boxes.to(device), size, threshold)
    assert rles == encode_pasted(probs, boxes, size, threshold)


def test_whole_image_and_neighbouring_columns(device):
    # Runs that go on from the bottom of one column to the top of the next.
    boxes = torch.tensor(
        [[-50.0, -50, 150, 150], [3, -50, 9, 150], [3, -50, 9, 40], [3, 4, 9, 150]]
    )
    probs = torch.ones(4, 5, 5)
    rles = paste_masks(probs.to(device), boxes.to(device), (80, 90), 0.5)
    assert rles == encode_pasted(probs, boxes, (80, 90), 0.5)
    assert rle_codec.area(rles[0]) == 80 * 90


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    cells=st.integers(1, 30),
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    threshold=st.floats(1e-3, 1.5),
)
def test_any_box_anywhere(seed, cells, height, width, threshold):
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.randn(8, 4, generator=generator) * 100
    boxes[:4, 2:] = boxes[:4, :2] + boxes[:4, 2:].abs()
    probs = torch.rand(8, cells, cells, generator=generator)
    rles = paste_masks(probs, boxes, (height, width), threshold)
    assert rles == encode_pasted(probs, boxes, (height, width), threshold)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-40])
@pytest.mark.parametrize("column", range(4))
def test_odd_boxes(value, column):
    boxes = torch.tensor([[2.0, 3, 20, 30]])
    boxes[0, column] = value
    probs = torch.rand(1, 28, 28)
    assert paste_masks(probs, boxes, (40, 50)) == encode_pasted(probs, boxes, (40, 50), 0.5)


def test_nan_belongs_to_no_mask():
    rles = paste_masks(torch.full((1, 4, 4), math.nan), torch.tensor([[1.0, 1, 9, 9]]), (9, 9))
    assert rles == [encode_bitmap(np.zeros((9, 9)))]


def test_none():
    assert paste_masks(torch.zeros(0, 28, 28), torch.zeros(0, 4), (10, 10)) == []


def test_opcheck():
    arguments = torch.rand(3, 7, 7), torch.tensor([[1.0, 2, 9, 8]]).repeat(3, 1), 20, 30, 0.5
    torch.library.opcheck(torch.ops.detlite.paste_masks_rle, arguments)
