"""Compare the evaluation operators with pycocotools and a scalar version of COCO's rules."""

from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.ops import mask_intersections, match_detections
from detlite.structures.masks.rle import EncodedMasks


def bitmaps(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Return bitmaps [count, height, width]: noise, stripes, full, empty."""
    kinds = [
        rng.random((height, width)) < 0.5,
        np.ones((height, width), bool),
        np.zeros((height, width), bool),
        np.arange(width)[None].repeat(height, 0) % 3 == 0,
        np.outer(np.arange(height) > height // 2, np.arange(width) < width // 2),
    ]
    return np.stack([kinds[i] for i in rng.integers(len(kinds), size=count)]).astype(np.uint8)


def packed(masks: list[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
    encoded = EncodedMasks.from_rles([rle_codec.encode(np.asfortranarray(m)) for m in masks])
    arrays = encoded.data, encoded.lengths, encoded.sizes.prod(axis=1)
    return tuple(map(torch.from_numpy, arrays))  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (13, 7), (90, 110)])
def test_pixels_in_common(seed: int, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    masks, others = (list(bitmaps(rng, n, height, width)) for n in (9, 12))
    index = torch.from_numpy(rng.integers(9, size=20))
    ranges = torch.from_numpy(np.sort(rng.integers(13, size=(20, 2)), axis=1))
    shared, areas, other_areas = mask_intersections(*packed(masks), index, *packed(others), ranges)
    assert areas.tolist() == [masks[i].sum() for i in index.tolist()]
    assert other_areas.tolist() == [mask.sum() for mask in others]
    assert shared.tolist() == [
        (masks[i] & others[g]).sum()
        for i, (first, last) in zip(index.tolist(), ranges.tolist(), strict=True)
        for g in range(first, last)
    ]


def test_many_threads_agree_with_one() -> None:
    rng = np.random.default_rng(0)
    sides = [packed(list(bitmaps(rng, 300, 20, 30))) for _ in range(2)]
    index = torch.arange(300)
    ranges = torch.stack([index // 2, index // 2 + 9], dim=1)
    threads = torch.get_num_threads()
    actual = []
    for count in (1, 3):
        torch.set_num_threads(count)
        actual.append(mask_intersections(*sides[0], index, *sides[1], ranges))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))


@pytest.mark.parametrize(
    "text", ["", "4", "16", "14P", "1/4", "1p4", "\x004", "P" * 9 + "1", "1N6", "`0", "122OO1"]
)
def test_strings_that_do_not_cover_the_pixels(text: str) -> None:
    """Too few and too many pixels, truncated, invalid characters, too long, negative."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8)
    bad = data, torch.tensor([len(data)]), torch.tensor([5])
    good = packed([np.ones((5, 1), np.uint8)])
    one = torch.tensor([0]), torch.tensor([[0, 1]])
    shared, areas, others = mask_intersections(*bad, one[0], *good, one[1])
    assert (shared.tolist(), areas.tolist(), others.tolist()) == ([0], [-1], [5])
    shared, areas, others = mask_intersections(*good, one[0], *bad, one[1])
    assert (shared.tolist(), areas.tolist(), others.tolist()) == ([0], [5], [-1])


def test_random_bytes_are_safe() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = torch.from_numpy(rng.integers(0, 12, 20))
        data = torch.from_numpy(rng.integers(40, 120, int(lengths.sum()), dtype=np.uint8))
        pixels = torch.from_numpy(rng.integers(0, 40, 20))
        side = data, lengths, pixels
        ranges = torch.tensor([[0, 20]]).repeat(20, 1)
        shared, areas, others = mask_intersections(*side, torch.arange(20), *side, ranges)
        assert torch.equal(areas, others)
        assert ((areas >= -1) & (areas <= pixels)).all()
        assert (shared.view(20, 20).diagonal() == areas.clamp(min=0)).all()


def test_intersections_opcheck() -> None:
    side = packed([np.eye(4, dtype=np.uint8)] * 2)
    arguments = *side, torch.tensor([1, 0]), *side, torch.tensor([[0, 2], [1, 2]])
    torch.library.opcheck(torch.ops.detlite.mask_intersections, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": torch.zeros(4)}, "masks must be uint8 of one dimension, got float32"),
        ({"lengths": torch.tensor([1])}, "lengths of masks must add up to its 4 bytes"),
        ({"lengths": torch.tensor([-1])}, "lengths of masks must add up to"),
        ({"lengths": torch.tensor([5])}, "lengths of masks must add up to"),
        ({"lengths": torch.tensor([4.0])}, "lengths and pixels of masks must be int64"),
        ({"pixels": torch.tensor([4, 4])}, r"lengths and pixels of masks .* got int64 \[2\]"),
        ({"pixels": torch.tensor([2**32])}, "pixels of masks must be from 0 to 2.32 - 1"),
        ({"index": torch.tensor([1])}, "index must be from 0 to 0, got 1"),
        ({"index": torch.tensor([-1])}, "index must be from 0 to 0, got -1"),
        ({"index": torch.tensor([0.0])}, "index must be int64 of one dimension"),
        ({"other_pixels": torch.tensor([-1])}, "pixels of others must be from 0"),
        ({"ranges": torch.tensor([0, 1])}, r"ranges must be int64 \[1, 2\], got int64 \[2\]"),
        ({"ranges": torch.tensor([[0, 2]])}, "ranges must be within 1 others, got 0 to 2"),
        ({"ranges": torch.tensor([[1, 0]])}, "ranges must be within 1 others, got 1 to 0"),
        ({"ranges": torch.tensor([[-1, 0]])}, "ranges must be within 1 others"),
    ],
)
def test_invalid_masks_are_named(change: dict[str, Any], message: str) -> None:
    side = torch.tensor(list(b"1212"), dtype=torch.uint8), torch.tensor([4]), torch.tensor([6])
    names = ("data", "lengths", "pixels")
    good = dict(zip(names, side, strict=True))
    good |= {"index": torch.tensor([0])}
    good |= {f"other_{name}": value for name, value in zip(names, side, strict=True)}
    good |= {"ranges": torch.tensor([[0, 1]])}
    mask_intersections(**good)
    with pytest.raises(RuntimeError, match=f"mask_intersections: {message}"):
        mask_intersections(**{**good, **change})


def scalar_match(
    overlaps: np.ndarray,
    crowd: np.ndarray,
    ignored: np.ndarray,
    uncounted: np.ndarray,
    least: float,
) -> list[int]:
    """Match one group with overlaps [D, G] by COCO's rules."""
    free = [True] * len(crowd)
    outcomes = []
    for d, row in enumerate(overlaps):
        fits = [g for g in range(len(crowd)) if (free[g] or crowd[g]) and row[g] >= least]
        fits = [g for g in fits if not ignored[g]] or fits
        if not fits:
            outcomes.append(2 if uncounted[d] else 0)
            continue
        best = max(fits, key=lambda g: (row[g], g))  # of equals the last
        free[best] = False
        outcomes.append(2 if ignored[best] else 1)
    return outcomes


@pytest.mark.parametrize("seed", range(6))
def test_matches_are_cocos(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 7, (40, 2))
    (detections, objects) = sizes.sum(axis=0)
    ends = sizes.cumsum(axis=0)
    groups = np.stack(
        [ends[:, 0] - sizes[:, 0], ends[:, 0], ends[:, 1] - sizes[:, 1], ends[:, 1]], 1
    )
    tables = [rng.integers(0, 11, size) / 10 for size in sizes]  # with many ties
    crowd, ignored = rng.random(objects) < 0.2, rng.random((3, objects)) < 0.4
    ignored |= crowd
    uncounted, thresholds = rng.random((3, detections)) < 0.3, np.array([0.5, 0.7, 1.0])
    flat = np.concatenate([table.ravel() for table in tables])
    arrays = flat, groups, crowd, ignored, uncounted, thresholds
    actual = match_detections(*map(torch.from_numpy, arrays)).numpy()
    for a in range(3):
        for t, least in enumerate(thresholds):
            expected = []
            for (first, last, low, high), table in zip(groups, tables, strict=True):
                own = slice(low, high)
                expected += scalar_match(
                    table, crowd[own], ignored[a, own], uncounted[a, first:last], least
                )
            assert actual[a, t].tolist() == expected
    assert set(actual.ravel().tolist()) == {0, 1, 2}


GOOD = {
    "overlaps": torch.tensor([0.5, 0.9]).double(),
    "groups": torch.tensor([[0, 2, 0, 1]]),
    "crowd": torch.tensor([False]),
    "ignored": torch.tensor([[False]]),
    "uncounted": torch.tensor([[False, True]]),
    "thresholds": torch.tensor([0.5]).double(),
}


def test_an_exact_overlap_reaches_threshold_1() -> None:
    change = {
        "overlaps": torch.tensor([1 - 1e-11, 1]).double(),
        "thresholds": torch.ones(1).double(),
    }
    assert match_detections(**{**GOOD, **change}).tolist() == [[[1, 2]]]


def test_matches_opcheck() -> None:
    torch.library.opcheck(torch.ops.detlite.match_detections, tuple(GOOD.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"overlaps": torch.zeros(2)}, "overlaps must be float64 of 1 dimensions, got float32"),
        ({"overlaps": torch.zeros(3).double()}, r"overlaps must have shape \[2\], .* got \[3\]"),
        ({"groups": torch.zeros(1, 3).long()}, r"groups must have shape \[Q, 4\], got \[1, 3\]"),
        ({"groups": torch.zeros(1, 4)}, "groups must be int64"),
        ({"groups": torch.tensor([[0, 1, 0, 1]])}, "groups must follow each other over 2"),
        ({"groups": torch.tensor([[1, 2, 0, 1]])}, "groups must follow each other over 2"),
        ({"groups": torch.tensor([[0, 3, 0, 1]])}, "groups must follow each other over 2"),
        ({"groups": torch.tensor([[0, 2, 0, 2]])}, "groups must be within 1 objects, got 0 to 2"),
        ({"groups": torch.tensor([[0, 2, 1, 0]])}, "groups must be within 1 objects"),
        ({"crowd": torch.zeros(1)}, "crowd must be bool of 1 dimensions, got float32"),
        ({"ignored": torch.zeros(1, 2).bool()}, r"ignored must have shape \[1, 1\]"),
        ({"uncounted": torch.zeros(2, 2).bool()}, r"uncounted must have shape \[1, D\]"),
        ({"thresholds": torch.zeros(1)}, "thresholds must be float64"),
    ],
)
def test_invalid_matches_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"match_detections: {message}"):
        match_detections(**{**GOOD, **change})
