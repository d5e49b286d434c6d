"""RowPacking and padding with static and dynamic shapes."""

import pytest
import torch

from detlite.structures.padding import (
    RowPacking,
    first_valid,
    gather,
    padded_length,
    read_count,
    top_scores,
)

VALID = torch.tensor(
    [
        [True, False, True, True],
        [False, False, False, False],
        [False, True, False, False],
    ]
)
EMPTY = [torch.zeros(shape, dtype=torch.bool) for shape in ((2, 0), (0, 3), (2, 3))]
each_mode = pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
each_empty_mask = pytest.mark.parametrize("valid", EMPTY, ids=lambda valid: str([*valid.shape]))


@pytest.mark.parametrize(
    ("static", "limit", "index", "valid"),
    [
        (False, None, [0, 2, 3, 9], 4),  # the valid entries
        (False, 6, [0, 2, 3, 9], 4),
        (True, 6, [0, 2, 3, 9, 1, 4], 4),  # the valid ones first
    ],
)
def test_rows(static, limit, index, valid):
    packing = RowPacking(VALID, static, limit)
    assert packing.index.tolist() == index
    assert packing.image.tolist() == [entry // 4 for entry in index]
    assert packing.valid.tolist() == [n < valid for n in range(len(index))]
    every = RowPacking(VALID, static_shapes=True)
    assert every.index.tolist() == list(range(12))
    assert torch.equal(every.valid, VALID.flatten())


@pytest.mark.parametrize("trailing", [(), (3,), (2, 5)])
def test_pack_and_unpack(trailing):
    entries = torch.rand(*VALID.shape, *trailing)
    packing = RowPacking(VALID, static_shapes=False)
    packed = packing.pack(entries)
    assert torch.equal(packed, entries[VALID])
    unpacked = packing.unpack(packed)
    assert torch.equal(unpacked[VALID], entries[VALID])
    assert not unpacked[~VALID].any()
    static = RowPacking(VALID, static_shapes=True)
    assert torch.equal(static.pack(entries), entries.flatten(0, 1))
    assert torch.equal(static.unpack(static.pack(entries)), entries)


@each_mode
def test_gradients_reach_the_entries(static):
    entries = torch.rand(3, 4, 2, requires_grad=True)
    packing = RowPacking(VALID, static)
    packed = packing.pack(entries).square() * packing.valid[:, None]
    (gradient,) = torch.autograd.grad(packing.unpack(packed).sum(), entries)
    assert torch.equal(gradient, 2 * entries * VALID[:, :, None])


@each_mode
def test_row_numbers(static):
    packing, entries = RowPacking(VALID, static), torch.arange(12).view(3, 4)
    assert torch.equal(packing.pack(entries)[packing.row_numbers()[VALID]], entries[VALID])


def test_rois_start_with_the_image_index():
    boxes = torch.rand(3, 4, 4)
    dynamic, static = (RowPacking(VALID, mode).rois(boxes) for mode in (False, True))
    assert dynamic[:, 0].tolist() == [0, 0, 0, 2]
    assert torch.equal(dynamic[:, 1:], boxes[VALID])
    assert static[:, 0].tolist() == [0, -1, 0, 0, -1, -1, -1, -1, -1, 2, -1, -1]
    assert torch.equal(static[:, 1:], boxes.flatten(0, 1))
    assert static.dtype == torch.float32
    assert RowPacking(VALID, False).rois(boxes.double()).dtype == torch.float64


@each_mode
@each_empty_mask
def test_packing_without_valid_entries(valid, static):
    packing, boxes = RowPacking(valid, static), torch.zeros(*valid.shape, 4)
    assert len(packing.index) == (valid.numel() if static else 0)
    assert not packing.valid.any()
    assert packing.rois(boxes).shape == (len(packing.index), 5)
    assert (packing.rois(boxes)[:, 0] == -1).all()
    assert packing.unpack(packing.pack(boxes)).shape == boxes.shape
    assert packing.row_numbers().shape == valid.shape


def test_padded_length():
    assert padded_length(VALID, static_shapes=False) == 3
    assert padded_length(VALID, static_shapes=True) == 4
    assert [padded_length(valid, static_shapes=False) for valid in (EMPTY[1], EMPTY[2])] == [0, 0]


@each_mode
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 1.0])
def test_first_valid(limit, fraction, static):
    valid = torch.rand(5, 8) < fraction
    expected = [row.nonzero()[:, 0].tolist()[:limit] for row in valid]
    index, kept = first_valid(valid, limit, static)
    length = min(limit, 8) if static else max(map(len, expected))
    assert index.shape == kept.shape == (5, length)
    assert index.dtype == torch.int64
    for image, places in enumerate(expected):
        assert kept[image].tolist() == [n < len(places) for n in range(length)]
        assert index[image].tolist() == places + [0] * (length - len(places))


@each_mode
@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("limit", [1, 5, 100])
def test_top_scores(threshold, limit, static):
    scores = torch.rand(3, 40)
    scores[1] *= 0.6  # none above 0.7
    scores[2, ::3] = torch.nan
    best, place, valid = top_scores(scores, threshold, limit, static)
    fullest = min(limit, int((scores > threshold).sum(dim=1).max()))
    assert best.shape == place.shape == valid.shape == (3, min(limit, 40) if static else fullest)
    for own, top, index, kept in zip(scores, best, place, valid, strict=True):
        expected = own[own > threshold].sort(descending=True).values[:limit]
        assert torch.equal(top[kept], expected)
        assert torch.equal(own[index[kept]], expected)
        assert kept.tolist() == sorted(kept.tolist(), reverse=True)


@pytest.mark.parametrize("trailing", [(), (4,), (2, 3)])
def test_gather(trailing):
    entries, index = torch.rand(3, 6, *trailing), torch.randint(0, 6, (3, 9))
    gathered = gather(entries, index)
    for image in range(3):
        for place in range(9):
            assert torch.equal(gathered[image, place], entries[image, index[image, place]])
    assert gather(entries, index[:, :0]).shape == (3, 0, *trailing)


@pytest.mark.parametrize(
    ("count", "rows"),
    [(0, 8), (1, 8), (8, 8), (9, 16), (127, 128), (129, 144), (1000, 1024), (2040, 2048)],
)
def test_training_computes_a_rounded_number_of_rows(count, rows):
    valid = torch.arange(2048).view(2, 1024) < count
    assert read_count(valid).rows() == rows
    assert read_count(valid[:, :1000]).rows() <= 2000
