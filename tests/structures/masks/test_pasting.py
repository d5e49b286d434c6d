"""Compare pasting of mask probabilities with grid_sample.

tests/ops/test_paste_masks.py compares the run lengths of pasted masks.
"""

import pytest
import torch
from torch.nn import functional as F

from detlite.conventions import CONVENTIONS
from detlite.ops import paste_masks
from detlite.structures.masks.pasting import paste_boxes, paste_probabilities

SIZE = (20, 24)  # height, width
# Inside, across each border, outside, tiny, with fractional sides, without height, whole image.
BOXES = torch.tensor(
    [
        [3.0, 4, 15, 12],
        [-6, -5, 8, 9],
        [18, 15, 40, 33],
        [30, 30, 40, 40],
        [-9, -9, -2, -2],
        [5.2, 6.1, 5.9, 6.4],
        [2.3, 3.7, 19.9, 18.2],
        [4, 7, 12, 7],
        [0, 0, 24, 20],
    ]
)


def paste_by_grid_sample(
    prob: torch.Tensor, box: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Paste like detectron2: sample the mask at the center of every pixel."""
    x1, y1, x2, y2 = box.tolist()
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in size)
    y = ((rows - y1) / (y2 - y1) * 2 - 1)[:, None].expand(size)
    x = ((columns - x1) / (x2 - x1) * 2 - 1)[None, :].expand(size)
    grid = torch.stack([x, y], dim=-1)
    return F.grid_sample(prob.double()[None, None], grid[None], align_corners=False)[0, 0]


@pytest.mark.parametrize("cells", [1, 7, 28])
def test_paste_is_grid_sample(cells):
    boxes = BOXES[BOXES[:, 3] > BOXES[:, 1]]
    for box in ([4.0, 7, 12, 7], [4, 7, 4, 12], [9, 9, 3, 3]):  # without area: a line or a point
        line = paste_probabilities(torch.ones(1, cells, cells), torch.tensor([box]), SIZE)
        assert line.isfinite().all()
        assert (line > 0).sum() <= 24
    probs = torch.rand(len(boxes), cells, cells)
    pasted = paste_probabilities(probs, boxes, SIZE)
    assert pasted.shape == (len(boxes), *SIZE)
    assert pasted.dtype == torch.float32
    for image, prob, box in zip(pasted, probs, boxes, strict=True):
        expected = paste_by_grid_sample(prob, box, SIZE)
        torch.testing.assert_close(image.double(), expected, atol=2e-5, rtol=0)


def test_autocast_does_not_move_edges():
    probs = torch.rand(len(BOXES), 28, 28)
    plain = paste_probabilities(probs, BOXES, SIZE)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(paste_probabilities(probs, BOXES, SIZE), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_paste_computes_in_float32(dtype):
    probs = torch.rand(len(BOXES), 14, 14).to(dtype)
    expected = paste_probabilities(probs.float(), BOXES, SIZE)
    assert torch.equal(paste_probabilities(probs, BOXES, SIZE), expected)
    assert paste_masks(probs, BOXES, SIZE) == paste_masks(probs.float(), BOXES, SIZE)


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda c: c.name)
def test_paste_boxes_follow_the_convention(convention):
    box = torch.tensor([[10.0, 20, 38.6, 48.9]])
    x1, y1, x2, y2 = paste_boxes(box, 28, convention)[0].tolist()
    if convention.mask_paste == "continuous":
        assert (x1, y1) == (10, 20)
        assert torch.tensor([x2, y2]).allclose(box[0, 2:])
        return
    # The mask with its ring of zeros fills whole pixels.
    last = 1.0 if convention.inclusive_boxes else 0.0
    for low, high, start, end in ((x1, x2, 10.0, 38.6), (y1, y2, 20.0, 48.9)):
        cell = (high - low) / 28
        center, half = (start + end - last) / 2, (end - last - start) / 2 * 30 / 28
        assert low - cell == pytest.approx(int(center - half), abs=1e-4)
        assert high + cell == pytest.approx(int(center + half) + 1, abs=1e-4)


def test_a_graph_pastes_the_same():
    probs = torch.rand(len(BOXES) + 1, 14, 14)
    boxes = torch.cat([BOXES, torch.tensor([[4.0, 5, torch.nan, 9]])])
    program = torch.compile(paste_probabilities, backend="eager", fullgraph=True)
    expected = paste_probabilities(probs, boxes, SIZE)
    torch.testing.assert_close(program(probs, boxes, SIZE), expected, atol=2e-5, rtol=0)
