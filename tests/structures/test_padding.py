"""Padding left out or computed: the same results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from detlite.structures.padding import (
    Rows,
    fixed_shapes,
    gather,
    highest,
    leading,
    shapes_vary,
    varying_shapes,
)

VALID = torch.tensor(
    [
        [True, False, True, True],
        [False, False, False, False],
        [False, True, False, False],
    ]
)
EMPTY = [torch.zeros(shape, dtype=torch.bool) for shape in ((2, 0), (0, 3), (2, 3))]


def both(function):
    """What a function gives with fixed shapes, and with varying ones."""
    with fixed_shapes():
        fixed = function()
    with varying_shapes():
        return fixed, function()


# ---- which shapes


def test_shapes_vary_on_the_cpu_alone():
    assert shapes_vary(torch.zeros(1))
    assert not shapes_vary(torch.zeros(1, device="meta"))


def test_the_outer_choice_of_fixed_shapes_goes_before():
    cpu, other = torch.zeros(1), torch.zeros(1, device="meta")
    with varying_shapes():
        assert shapes_vary(other)
        with fixed_shapes():
            assert not shapes_vary(cpu)
        assert shapes_vary(other)
    with fixed_shapes():
        with varying_shapes():
            assert not shapes_vary(cpu)
        assert not shapes_vary(cpu)
    assert shapes_vary(cpu)


def test_padding_is_left_out_on_every_device_where_it_must_be():
    other = torch.zeros(1, device="meta")
    assert shapes_vary(other, unpadded=True)
    with fixed_shapes():
        assert not shapes_vary(other, unpadded=True)


def test_an_error_ends_the_choice():
    with pytest.raises(KeyError), fixed_shapes():
        raise KeyError
    assert shapes_vary(torch.zeros(1))


def test_nothing_varies_while_compiling():
    @torch.compile(backend="eager", fullgraph=True)
    def count(valid: Tensor) -> Tensor:
        return Rows(valid).index

    assert len(count(VALID)) == 12
    assert len(Rows(VALID).index) == 4


# ---- rows


def test_rows_are_the_valid_entries():
    rows = Rows(VALID)
    assert rows.index.tolist() == [0, 2, 3, 9]
    assert rows.image.tolist() == [0, 0, 0, 2]
    assert rows.valid.tolist() == [True] * 4


def test_rows_are_all_entries_where_shapes_are_fixed():
    with fixed_shapes():
        rows = Rows(VALID)
    assert rows.index.tolist() == list(range(12))
    assert rows.image.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(rows.valid, VALID.flatten())


@pytest.mark.parametrize("trailing", [(), (3,), (2, 5)])
def test_pack_and_unpack(trailing):
    entries = torch.rand(*VALID.shape, *trailing)
    packed = Rows(VALID).pack(entries)
    assert torch.equal(packed, entries[VALID])
    unpacked = Rows(VALID).unpack(packed)
    assert torch.equal(unpacked[VALID], entries[VALID])
    assert not unpacked[~VALID].any()
    with fixed_shapes():
        rows = Rows(VALID)
    assert torch.equal(rows.pack(entries), entries.flatten(0, 1))
    assert torch.equal(rows.unpack(rows.pack(entries)), entries)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_unpacked_rows_keep_their_type(dtype):
    assert Rows(VALID).unpack(torch.ones(4, 2, dtype=dtype)).dtype == dtype


def test_gradients_reach_the_rows():
    entries = torch.rand(3, 4, 2, requires_grad=True)

    def gradient() -> Tensor:
        rows = Rows(VALID)
        packed = rows.pack(entries).square() * rows.valid[:, None]
        return torch.autograd.grad(rows.unpack(packed).sum(), entries)[0]

    fixed, varying = both(gradient)
    assert torch.equal(fixed, 2 * entries * VALID[:, :, None])
    assert torch.equal(varying, fixed)


def test_position_finds_the_row_of_an_entry():
    for rows in both(lambda: Rows(VALID)):
        packed = rows.pack(torch.arange(12).view(3, 4))
        assert torch.equal(packed[rows.position()[VALID]], torch.arange(12).view(3, 4)[VALID])


def test_rois_begin_with_the_image_or_padding():
    boxes = torch.rand(3, 4, 4)
    fixed, varying = both(lambda: Rows(VALID).rois(boxes))
    assert varying[:, 0].tolist() == [0, 0, 0, 2]
    assert torch.equal(varying[:, 1:], boxes[VALID])
    assert fixed[:, 0].tolist() == [0, -1, 0, 0, -1, -1, -1, -1, -1, 2, -1, -1]
    assert torch.equal(fixed[:, 1:], boxes.flatten(0, 1))
    assert fixed.dtype == torch.float32
    assert Rows(VALID).rois(boxes.double()).dtype == torch.float64


@pytest.mark.parametrize("valid", EMPTY, ids=lambda valid: str(list(valid.shape)))
def test_masks_without_any_true(valid):
    for rows in both(lambda: Rows(valid)):
        assert not rows.valid.any()
        boxes = torch.zeros(*valid.shape, 4)
        assert rows.rois(boxes).shape == (len(rows.index), 5)
        assert (rows.rois(boxes)[:, 0] == -1).all()
        assert rows.unpack(rows.pack(boxes)).shape == boxes.shape
        assert rows.position().shape == valid.shape
    assert len(Rows(valid).index) == 0


# ---- leading


def leading_slowly(valid: Tensor, most: int) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist()[:most] for row in valid]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_leading_row_by_row(most, share):
    valid = torch.rand(5, 8) < share
    expected = leading_slowly(valid, most)
    (fixed, fixed_kept), (index, kept) = both(lambda: leading(valid, most))
    assert fixed.shape == fixed_kept.shape == (5, min(most, 8))
    assert index.shape == kept.shape == (5, max(map(len, expected)))
    for found, found_kept in ((fixed, fixed_kept), (index, kept)):
        assert found.dtype == torch.int64
        for image, places in enumerate(expected):
            assert found_kept[image].tolist() == [n < len(places) for n in range(found.shape[1])]
            padding = [0] * (found.shape[1] - len(places))
            assert found[image].tolist() == places + padding


@pytest.mark.parametrize("valid", EMPTY, ids=lambda valid: str(list(valid.shape)))
def test_leading_of_nothing(valid):
    (fixed, fixed_kept), (index, kept) = both(lambda: leading(valid, 2))
    assert fixed.shape == (valid.shape[0], min(2, valid.shape[1]))
    assert not fixed_kept.any()
    assert index.shape == kept.shape == (valid.shape[0], 0)


@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("most", [1, 5, 100])
def test_highest_image_by_image(threshold, most):
    scores = torch.rand(3, 40)
    scores[1] *= 0.6  # nothing above 0.7
    scores[2, ::3] = torch.nan
    for best, place, valid in both(lambda: highest(scores, threshold, most)):
        assert best.shape == place.shape == valid.shape
        for own, top, index, kept in zip(scores, best, place, valid, strict=True):
            wanted = own[own > threshold].sort(descending=True).values[:most]
            assert torch.equal(top[kept], wanted)
            assert torch.equal(own[index[kept]], wanted)
            assert kept.tolist() == sorted(kept.tolist(), reverse=True)
    fixed, varying = both(lambda: highest(scores, threshold, most)[0].shape[1])
    assert fixed == min(most, 40)
    assert varying == min(most, int((scores > threshold).sum(dim=1).max()))


@pytest.mark.parametrize("trailing", [(), (4,), (2, 3)])
def test_gather(trailing):
    entries, index = torch.rand(3, 6, *trailing), torch.randint(0, 6, (3, 9))
    found = gather(entries, index)
    for image in range(3):
        for place in range(9):
            assert torch.equal(found[image, place], entries[image, index[image, place]])


def test_gather_at_no_places():
    assert gather(torch.rand(2, 6, 4), torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, 4)
