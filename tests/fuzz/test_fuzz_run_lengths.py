"""Almost valid run lengths are rejected, or decode to the mask that pycocotools decodes."""

import contextlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pycocotools import mask as rle_codec

from detlite.data.annotations.single import read_segmentation
from detlite.structures.masks.formats import to_bitmap
from detlite.structures.masks.packed import PackedMasks
from detlite.structures.masks.rle import run_lengths
from tests.fuzz.inputs import mutated, mutated_bytes

SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))
SEGMENTATIONS = [
    [[4, 6, 14, 6, 14, 14, 4, 14], [1.5, 2, 8, 2, 8, 9.25]],
    {"size": [20, 30], "counts": [0, 400, 200]},
    {"size": [20, 30], "counts": "`0`<h5"},
]


def check_decoding(counts: list[int] | str, height: int, width: int) -> None:
    """Compare both decoders with pycocotools, unless the run lengths are rejected."""
    rle = {"size": [height, width], "counts": counts}
    if read_segmentation(rle, height, width, may_be_empty=True).problem is not None:
        return
    is_list = isinstance(counts, list)
    bitmap = rle_codec.decode(rle_codec.frPyObjects(rle, height, width) if is_list else rle)
    assert (to_bitmap(rle, height, width) == bitmap).all()
    packed = PackedMasks.from_segmentations([rle], height, width, False)
    assert (packed.bitmaps(height, width)[0].numpy() == bitmap).all()


@given(size=SIZES, seed=st.integers(0, 1000), data=st.data())
def test_compressed_run_lengths(size, seed, data, bounded):
    bitmap = np.random.default_rng(seed).integers(0, 2, size, np.uint8)
    counts = rle_codec.encode(np.asfortranarray(bitmap))["counts"]
    changed = data.draw(mutated_bytes(counts))
    with bounded():
        check_decoding(changed.decode("latin1"), *size)


@given(counts=st.lists(st.integers(-3, 40), max_size=9), size=SIZES)
@example(counts=[2**63 - 1, 2**63 - 1, 2], size=(1, 1))
@example(counts=[2**64], size=(1, 1))
@example(counts=[0, 0, 0, 4], size=(2, 2))
def test_lists_of_run_lengths(counts, size, bounded):
    with bounded():
        check_decoding(counts, *size)


@given(text=st.text(max_size=30) | st.binary(max_size=30))
def test_any_text(text, bounded):
    with bounded(), contextlib.suppress(ValueError):
        assert run_lengths(text).dtype == np.int64


@given(segmentation=st.sampled_from(SEGMENTATIONS).flatmap(mutated))
@pytest.mark.slow
def test_segmentations(segmentation, bounded):
    with bounded():
        if read_segmentation(segmentation, 20, 30) == (segmentation, None, None):
            bitmap = to_bitmap(segmentation, 20, 30)
            for as_rle in (False, True):
                packed = PackedMasks.from_segmentations([segmentation], 20, 30, as_rle)
                drawn = packed.bitmaps(20, 30)[0].numpy()
                assert (drawn == bitmap).all() or not (as_rle or isinstance(segmentation, dict))
