"""Compare packed masks with bitmaps that are flipped and resized pixel by pixel."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torchvision.transforms.v2 import functional as F

from detlite.structures.masks.formats import encode_bitmap, to_bitmap
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.rle import run_lengths
from tests.builders import blob

SIZE = (37, 53)  # height, width
SIZES = [(37, 53), (80, 115), (31, 17), (7, 90), (74, 106), (1, 1), (37, 200)]
FLIPS = [(False, False), (True, False), (False, True), (True, True)]


def star(seed: int, center: tuple[float, float] = (26, 18), radius: float = 17) -> list[float]:
    """Return a polygon with fractional coordinates."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, 14))
    lengths = radius * rng.uniform(0.7, 1, 14)
    x = center[0] + lengths * np.cos(angles)
    y = center[1] + lengths * np.sin(angles)
    return np.stack([x, y], axis=1).flatten().tolist()


def mixed() -> list:
    """Return segmentations of every format in an image of SIZE."""
    return [
        encode_bitmap(blob(1)),
        [star(2)],
        {"size": list(SIZE), "counts": run_lengths(encode_bitmap(blob(3))["counts"]).tolist()},
        [star(4), star(5, (40, 25), 9), [0, 0, 10, 0, 10, 12, 0, 12]],
        encode_bitmap(np.zeros(SIZE, np.uint8)),
    ]


def transform_bitmaps(masks, flip_x, flip_y, size):
    """Flip bitmaps, then read the pixel at the center of each new pixel."""
    axes = [axis for axis, flipped in ((1, flip_y), (2, flip_x)) if flipped]
    flipped = torch.from_numpy(masks).flip(axes)
    return F.resize_image(flipped, list(size), F.InterpolationMode.NEAREST_EXACT).numpy()


def bitmaps_of(segmentations):
    return np.stack([to_bitmap(segmentation, *SIZE) for segmentation in segmentations])


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / max((a | b).sum(), 1)


def equal(a: PackedMasks, b: PackedMasks) -> bool:
    return all(map(torch.equal, pytree.tree_leaves(a), pytree.tree_leaves(b)))


# ---- packing


@pytest.mark.parametrize("as_rle", [False, True])
def test_segmentations_of_every_format(as_rle):
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=as_rle)
    assert len(masks) == 5
    assert np.array_equal(masks.bitmaps(*SIZE).numpy(), bitmaps_of(mixed()))
    assert masks.bitmaps(*SIZE).dtype == torch.uint8
    assert (masks.frames[:, 0] > 0).tolist() == [True, as_rle, True, as_rle, True]
    dtypes = [tensor.dtype for tensor in pytree.tree_leaves(masks)]
    assert dtypes == [torch.float64, torch.int64, torch.int64, torch.int64]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [SIZE, (1, 1), (1, 9), (9, 1)])
def test_bitmaps_round_trip(dtype, size):
    masks = torch.from_numpy(np.stack([blob(1, size), blob(2, size)]))
    masks = torch.cat([masks, torch.zeros_like(masks[:1]), torch.ones_like(masks[:1])]).to(dtype)
    packed = PackedMasks.from_bitmaps(masks)
    assert torch.equal(packed.bitmaps(*size), masks.to(torch.uint8))
    rles = [encode_bitmap(mask.numpy()) for mask in masks]
    # pycocotools writes a first run of length 0.
    assert equal(packed, PackedMasks.from_segmentations(rles, *size, as_rle=False))


def test_no_masks():
    for masks in (
        PackedMasks.from_segmentations([], *SIZE, as_rle=False),
        PackedMasks.from_bitmaps(torch.zeros((0, *SIZE), dtype=torch.bool)),
        PackedMasks.from_segmentations([[star(0)]], *SIZE, False).select(torch.tensor([False])),
    ):
        assert len(masks) == 0
        assert masks.frames.shape == (0, 6)
        assert masks.transformed(True, False, SIZE, (50, 50)).bitmaps(50, 50).shape == (0, 50, 50)
        assert len(masks.select(torch.zeros(0, dtype=torch.bool))) == 0


def test_invalid_input_is_rejected():
    rle = encode_bitmap(np.ones((37, 52)))
    with pytest.raises(ValueError, match=r"size \[37, 52\] in an image of size \[37, 53\]"):
        PackedMasks.from_segmentations([rle], *SIZE, as_rle=False)
    for ring in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]):
        with pytest.raises(ValueError, match="three points"):
            PackedMasks.from_segmentations([[ring]], *SIZE, as_rle=True)
    with pytest.raises(TypeError, match=r"uint8 or bool, not torch\.float32"):
        PackedMasks.from_bitmaps(torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match=r"\[I, H, W\], not \[2, 3\]"):
        PackedMasks.from_bitmaps(torch.zeros((2, 3), dtype=torch.bool))
    with pytest.raises(ValueError, match=r"a mask has size \[37, 53\], not \[53, 37\]"):
        PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=False).bitmaps(53, 37)


# ---- transforms


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flips", FLIPS)
def test_run_lengths_transform_like_bitmaps(flips, size):
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=True)
    # Flips combine.
    masks = masks.transformed(True, False, SIZE, SIZE).transformed(True, False, SIZE, SIZE)
    moved = masks.transformed(*flips, SIZE, size).bitmaps(*size).numpy()
    assert np.array_equal(moved, transform_bitmaps(bitmaps_of(mixed()), *flips, size))


@pytest.mark.parametrize("size", [(300, 420), (600, 840), (450, 631), (200, 300)])
@pytest.mark.parametrize("flips", FLIPS)
def test_polygons_transform_like_bitmaps_except_at_edges(flips, size):
    stars = [[star(seed, (150 + 30 * seed, 140), 120)] for seed in range(4)]
    stars.append([star(4, (80, 90), 70), star(5, (330, 200), 85)])
    masks = PackedMasks.from_segmentations(stars, 300, 420, as_rle=False)
    before = masks.bitmaps(300, 420).numpy()
    assert np.array_equal(before, np.stack([to_bitmap(one, 300, 420) for one in stars]))
    moved = masks.transformed(*flips, (300, 420), size).bitmaps(*size).numpy()
    expected = transform_bitmaps(before, *flips, size)
    for one, other in zip(moved, expected, strict=True):
        assert overlap(one, other) > 0.95


def test_polygons_transform_their_coordinates():
    masks = PackedMasks.from_segmentations([[[10, 2, 20, 3, 15, 9.5]]], 30, 40, as_rle=False)
    moved = masks.transformed(True, True, (30, 40), (60, 20))
    assert moved.values.tolist() == [15, 56, 10, 54, 12.5, 41]
    assert masks.values.tolist() == [10, 2, 20, 3, 15, 9.5]  # not in place


@pytest.mark.parametrize("flips", FLIPS[1:])
def test_run_lengths_are_resized_once(flips):
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=False)
    resized = masks.transformed(False, False, SIZE, (60, 80))
    for arguments in ((False, False, (60, 80), SIZE), (*flips, (60, 80), (60, 80))):
        with pytest.raises(ValueError, match="resized before: flip first, and resize once"):
            resized.transformed(*arguments)
    with pytest.raises(ValueError, match=r"not belong to an image of size \(37, 53\)"):
        resized.transformed(*flips, SIZE, (60, 80))
    polygons = resized.select(torch.tensor([1, 3]))
    back = polygons.transformed(*flips, (60, 80), SIZE)
    expected = masks.select(torch.tensor([1, 3])).transformed(*flips, SIZE, SIZE)
    torch.testing.assert_close(back.values, expected.values)


# ---- instances and batches


@pytest.mark.parametrize("keep", [[], [0], [3, 1], [4, 3, 2, 1, 0], [1, 1]])
def test_select_by_index(keep):
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=False)
    expected = PackedMasks.from_segmentations([mixed()[i] for i in keep], *SIZE, as_rle=False)
    assert equal(masks.select(torch.tensor(keep, dtype=torch.int64)), expected)
    chosen = torch.tensor([index in keep for index in range(5)])
    assert equal(masks.select(chosen), masks.select(torch.tensor(sorted(set(keep))).long()))


def test_a_batch_is_padded():
    images = [mixed()[:3], [], mixed()[1:], mixed()[3:4]]
    packed = [PackedMasks.from_segmentations(one, *SIZE, as_rle=False) for one in images]
    batch = PackedMasks.collate(packed, 6)
    assert len(batch) == 24
    bitmaps = batch.bitmaps(*SIZE).view(4, 6, *SIZE)
    counts = batch.instances.diff().view(4, 6)
    for index, one in enumerate(packed):
        assert torch.equal(bitmaps[index, : len(one)], one.bitmaps(*SIZE))
        assert not counts[index, len(one) :].any()
        instances = torch.arange(6 * index, 6 * index + len(one))
        assert equal(batch.select(instances), one)
    assert not batch.frames.view(4, 6, 6)[1].any()
    assert equal(PackedMasks.collate(packed[:1], 3), packed[0])
    with pytest.raises(ValueError, match="4 masks of an image do not fit into 3"):
        PackedMasks.collate(packed, 3)


def test_to_moves_every_field():
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=False)
    assert equal(masks.to("cpu"), masks)
    assert {t.device.type for t in pytree.tree_leaves(masks.to("meta"))} == {"meta"}
    target = {"masks": masks, "boxes": torch.zeros(5, 4)}
    leaves, spec = pytree.tree_flatten(target)
    assert len(leaves) == 5
    assert equal(pytree.tree_unflatten(leaves, spec)["masks"], masks)


def test_pickles_as_arrays():
    masks = PackedMasks.from_segmentations(mixed(), *SIZE, as_rle=False)
    some = masks.select(torch.tensor([0]))
    data = pickle.dumps(some)
    assert b"torch" not in data  # tensors would need file descriptors
    assert equal(pickle.loads(data), some)
    assert len(data) < 8 * len(some.values) + 1500
