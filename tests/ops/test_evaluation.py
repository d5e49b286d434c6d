"""Compare the evaluation operators with pycocotools.

tests/evaluation/test_matching.py compares the matches and the tables of precision and recall.
"""

from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as rle_codec
from torch import Tensor

from detlite.ops import (
    box_overlaps,
    encode_polygons,
    mask_intersections,
    match_detections,
)
from detlite.ops.dispatch import FALLBACKS
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


_SIDE = {
    "data": torch.tensor(list(b"1212"), dtype=torch.uint8),
    "lengths": torch.tensor([4]),
    "pixels": torch.tensor([6]),
}
GOOD: dict[str, dict[str, Any]] = {
    "mask_intersections": {
        **_SIDE,
        **{f"other_{name}": value for name, value in _SIDE.items()},
        "index": torch.tensor([0]),
        "ranges": torch.tensor([[0, 1]]),
    },
    "match_detections": {
        "overlaps": torch.tensor([0.5, 0.9]).double(),
        "groups": torch.tensor([[0, 2, 0, 1]]),
        "crowd": torch.tensor([False]),
        "ignored": torch.tensor([[False]]),
        "uncounted": torch.tensor([[False, True]]),
        "thresholds": torch.tensor([0.5]).double(),
    },
    "encode_polygons": {
        "corners": torch.tensor([[0.0, 0], [4, 0], [4, 4]]).double(),
        "polygons": torch.tensor([3]),
        "masks": torch.tensor([1]),
        "sizes": torch.tensor([[5, 5]]),
    },
    "box_overlaps": {
        "boxes": torch.ones(1, 4).double(),
        "others": torch.ones(1, 4).double(),
        "crowd": torch.tensor([False]),
        "ranges": torch.tensor([[0, 1]]),
    },
    "precision_recall": {
        "outcomes": torch.tensor([[[1, 0]]], dtype=torch.uint8),
        "scores": torch.tensor([0.5, 0.9]).double(),
        "ranks": torch.tensor([1, 0]),
        "ends": torch.tensor([2]),
        "positives": torch.tensor([[1]]),
        "limits": torch.tensor([100]),
        "recall_thresholds": torch.tensor([0.0, 1.0]).double(),
        "max_dets": 100,
    },
}


def test_an_exact_overlap_reaches_threshold_1() -> None:
    change = {
        "overlaps": torch.tensor([1 - 1e-11, 1]).double(),
        "thresholds": torch.ones(1).double(),
    }
    assert match_detections(**{**GOOD["match_detections"], **change}).tolist() == [[[1, 2]]]


@pytest.mark.parametrize("function", [match_detections, FALLBACKS["match_detections"]])
def test_the_last_of_equal_overlaps_wins(function: Any) -> None:
    two = torch.zeros(1, 2, dtype=torch.bool)
    change = {
        "overlaps": torch.tensor([0.6, 0.6, 0.6, 0]).double(),
        "groups": torch.tensor([[0, 2, 0, 2]]),
        **{"crowd": two[0], "ignored": two, "uncounted": two},
    }
    arguments = {**GOOD["match_detections"], **change}.values()
    assert function(*arguments).tolist() == [[[1, 1]]]


def random_polygons(
    rng: np.random.Generator, side: int
) -> tuple[list[list[list[float]]], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Make masks of one to three polygons, inside and around images, and the operator's inputs."""
    masks, sizes = [], []
    for _ in range(60):
        sizes.append(rng.integers(1, side, 2).tolist())
        polygons = []
        for _ in range(rng.integers(1, 4)):
            corners = (
                rng.random(2 * int(rng.integers(3, 9))) * rng.choice([1, 1.4]) * max(sizes[-1])
            )
            corners -= rng.choice([0, 10])
            # Corners on pixel borders, on the fine grid of COCO's rasterization, and between.
            steps = rng.choice([1, 5, 1000])
            polygons.append((np.round(corners * steps) / steps).tolist())
        masks.append(polygons)
    rings = [ring for mask in masks for ring in mask]
    corners = torch.tensor([x for ring in rings for x in ring], dtype=torch.float64).view(-1, 2)
    counts = torch.tensor([len(ring) // 2 for ring in rings])
    return masks, (
        corners,
        counts,
        torch.tensor([len(mask) for mask in masks]),
        torch.tensor(sizes),
    )


@pytest.mark.parametrize("side", [6, 90])
@pytest.mark.parametrize("function", [encode_polygons, FALLBACKS["encode_polygons"]])
def test_polygons_are_encoded_like_pycocotools(function: Any, side: int) -> None:
    masks, arguments = random_polygons(np.random.default_rng(side), side)
    data, ends = function(*arguments)
    text = data.numpy().tobytes()
    starts = [0, *ends.tolist()]
    for n, (mask, size) in enumerate(zip(masks, arguments[3].tolist(), strict=True)):
        expected = rle_codec.merge(rle_codec.frPyObjects(mask, *size))["counts"]
        assert text[starts[n] : starts[n + 1]] == expected


@pytest.mark.parametrize("function", [encode_polygons, FALLBACKS["encode_polygons"]])
def test_degenerate_polygons_are_empty(function: Any) -> None:
    """No polygon, no corner, one corner, corners that are not numbers, an empty list of masks."""
    corners = torch.tensor([[3.0, 3], [torch.nan, 1], [torch.inf, 2], [-torch.inf, 4]]).double()
    polygons, masks = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1, 1])
    data, ends = function(corners, polygons, masks, torch.tensor([[5, 7]] * 4))
    assert ends[-1] == len(data)
    empty = rle_codec.encode(np.zeros((5, 7), np.uint8, order="F"))["counts"]
    assert data.numpy().tobytes().startswith(empty * 3)
    none = torch.zeros(0, dtype=torch.int64)
    data, ends = function(corners[:0], none, none, none.view(0, 2))
    assert len(data) == len(ends) == 0


@pytest.mark.parametrize("function", [box_overlaps, FALLBACKS["box_overlaps"]])
def test_box_overlaps_are_those_of_pycocotools(function: Any) -> None:
    rng = np.random.default_rng(0)
    boxes, others = (rng.integers(0, 9, (count, 4)).astype(float) for count in (50, 30))
    others[:5] = boxes[:5]
    crowd = rng.random(30) < 0.3
    ranges = np.sort(rng.integers(0, 31, (50, 2)))
    arrays = boxes, others, crowd, ranges
    actual = function(*map(torch.from_numpy, arrays)).numpy()
    expected = [
        rle_codec.iou(box[None], others[first:last], crowd[first:last].astype(np.uint8)).ravel()
        for box, (first, last) in zip(boxes, ranges, strict=True)
        if first < last
    ]
    np.testing.assert_allclose(actual, np.concatenate(expected), rtol=0, atol=1e-15)


INVALID: dict[str, list[tuple[dict[str, Any], str]]] = {
    "mask_intersections": [
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
    "match_detections": [
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
    "encode_polygons": [
        ({"corners": torch.zeros(3, 2)}, "corners must be float64, got float32"),
        ({"corners": torch.zeros(6).double()}, r"corners must have shape \[V, 2\], got \[6\]"),
        ({"polygons": torch.tensor([2])}, "polygons must add up to the 3 corners, got 2"),
        ({"polygons": torch.tensor([-1])}, "polygons must add up to the 3 corners, got -1"),
        ({"masks": torch.tensor([2])}, "masks must add up to the 1 polygons, got 2"),
        ({"masks": torch.tensor([1.0])}, "masks must be int64"),
        ({"sizes": torch.tensor([[5, 0]])}, "a width must be from 1 to"),
        ({"sizes": torch.tensor([[1 << 20, 1 << 20]])}, "has too many pixels for run lengths"),
        ({"sizes": torch.tensor([5, 5])}, r"sizes must have shape \[1, 2\]"),
    ],
    "box_overlaps": [
        ({"boxes": torch.zeros(1, 4)}, "boxes must be float64, got float32"),
        ({"others": torch.zeros(1, 3).double()}, r"others must have shape \[1, 4\]"),
        ({"crowd": torch.zeros(2).bool()}, r"crowd must have shape \[1\]"),
        ({"ranges": torch.tensor([[0, 2]])}, "ranges must be within 1 others, got 0 to 2"),
        ({"ranges": torch.tensor([[-1, 1]])}, "ranges must be within 1 others"),
    ],
    "precision_recall": [
        ({"outcomes": torch.zeros(1, 1, 2)}, "outcomes must be uint8, got float32"),
        ({"scores": torch.zeros(3).double()}, r"scores must have shape \[2\], .* got \[3\]"),
        ({"ranks": torch.zeros(2)}, "ranks must be int64, got float32"),
        ({"ends": torch.tensor([1])}, "ends must increase to the 2 detections, got 1"),
        ({"ends": torch.tensor([3])}, "ends must increase to the 2 detections, got 3"),
        ({"positives": torch.tensor([1])}, r"positives must have shape \[1, 1\]"),
        ({"recall_thresholds": torch.zeros(2)}, "recall_thresholds must be float64"),
    ],
}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [(name, *row) for name, changes in INVALID.items() for row in changes],
)
def test_invalid_arguments_are_named(name: str, change: dict[str, Any], message: str) -> None:
    operator = getattr(torch.ops.detlite, name)
    operator(**GOOD[name])
    with pytest.raises(RuntimeError, match=f"{name}: .*{message}"):
        operator(**{**GOOD[name], **change})
