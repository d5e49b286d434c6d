"""Test decoding of RLE counts, and many RLEs packed in arrays."""

import numpy as np
import pytest
from pycocotools import mask as rle_codec

from detlite.structures.masks import rle
from detlite.structures.masks.rle import EncodedMasks, draw_rle, run_lengths


@pytest.mark.parametrize("seed", range(8))
def test_run_lengths_of_compressed_counts(seed):
    rng = np.random.default_rng(seed)
    # Short and very long runs, so that numbers have one to six characters and both signs.
    runs = (2 ** rng.uniform(0, rng.integers(1, 28), 61)).astype(int)
    if seed % 2:
        runs[0] = 0
    height = int(runs.sum())
    encoded = rle_codec.frPyObjects({"size": [height, 1], "counts": runs.tolist()}, height, 1)
    assert run_lengths(encoded["counts"]).tolist() == runs.tolist()
    assert run_lengths(encoded["counts"].decode()).tolist() == runs.tolist()
    assert run_lengths(runs.tolist()).tolist() == runs.tolist()


@pytest.mark.parametrize("counts", ["!", "0é", "0世", "P", "0" + "o" * 9, "P" * 7 + "0", b"\xff"])
def test_invalid_counts_are_rejected(counts):
    with pytest.raises(ValueError, match="not run lengths"):
        run_lengths(counts)


def test_empty_runs_are_drawn():
    assert draw_rle([1, 0, 2, 1, 0, 1, 1], 2, 3).T.ravel().tolist() == [0, 0, 0, 1, 1, 0]
    assert not draw_rle([6], 2, 3).any()
    assert not draw_rle("", 2, 3).any()


@pytest.mark.parametrize("counts", [[0, 8], [6, 1], [100, 2], [4, -1, 1, 2], [2**40]])
def test_runs_must_fit_into_the_bitmap(counts):
    with pytest.raises(ValueError, match="the RLE counts cover"):
        draw_rle(counts, 2, 3)


@pytest.mark.parametrize("damaged", ["!", "P", "PPPPPP", "0" + "o" * 9])
def test_damaged_run_lengths_do_not_change_their_neighbors(damaged):
    rles = [{"size": [2, 3], "counts": text} for text in ("15", damaged, "PP015", "", "33", "15")]
    assert EncodedMasks.from_rles(rles).areas.tolist() == [5, -1, 1, -1, 3, 5]


def random_counts(rng):
    """Make counts of a bitmap of 20 x 30 pixels, and changed or arbitrary ones."""
    bitmap = rng.random((20, 30)) < rng.random()
    text = rle_codec.encode(np.asfortranarray(bitmap.astype(np.uint8)))["counts"].decode()
    arbitrary = "".join(map(chr, rng.integers(48, 112, rng.integers(0, 12))))
    return [text, text[:-1], text + "3", text[: len(text) // 2] + "~", arbitrary, arbitrary + "!"]


@pytest.mark.parametrize("step", [1, 1000])
def test_areas_of_masks_that_cover_their_images(step, monkeypatch):
    monkeypatch.setattr(rle, "_CHARACTERS_PER_STEP", step)
    rng = np.random.default_rng(0)
    texts = [text for _ in range(40) for text in random_counts(rng)]
    expected = []
    for text in texts:
        try:
            runs = run_lengths(text)
        except ValueError:
            runs = np.array([-1])
        covers = (runs >= 0).all() and runs.sum() == 600
        expected.append(int(runs[1::2].sum()) if covers else -1)
    masks = EncodedMasks.from_rles([{"size": [20, 30], "counts": text} for text in texts])
    assert masks.areas.tolist() == expected
    assert 40 <= sum(area >= 0 for area in expected) < 100
