"""Tests of the search for nearly identical images."""

import io
import itertools
import time

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.apps.dataset_check.fingerprints import (
    FINGERPRINT,
    fingerprint,
    nearly_identical,
    read_fingerprints,
)
from detlite.data.datasets.synthetic import draw_scene
from detlite.data.images.pixels import DEFAULT_OPTIONS


def scene(seed):
    return Image.fromarray(draw_scene(np.random.default_rng(seed))[0])


def as_jpeg(image, quality):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def prints_of(fingerprints):
    return np.array(fingerprints, FINGERPRINT)


def groups_of(images):
    """Return the groups of several images as tuples of indices."""
    tensors = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]
    groups = nearly_identical(prints_of([fingerprint(one) for one in tensors])).tolist()
    found = [tuple(k for k, one in enumerate(groups) if one == n) for n in sorted(set(groups))]
    return [group for group in found if len(group) > 1]


def test_rescaled_recompressed_and_gray_copies():
    originals = [scene(seed) for seed in range(40)]
    smaller = originals[3].resize((originals[3].width * 3 // 4, originals[3].height * 3 // 4))
    gray = [image.convert("L").convert("RGB") for image in originals[20:]]
    images = [*originals, as_jpeg(originals[7], 60), smaller, originals[7], *gray]
    assert groups_of(images) == [(3, 41), (7, 40, 42), *((k, k + 23) for k in range(20, 40))]


def dark_image(seed, size, *squares):
    """Return a noisy dark image with bright squares."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(9, 3, size)
    for x, y, side, level in squares:
        pixels[y : y + side, x : x + side] = level
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB")


def test_copies_of_dark_images():
    """Noise of the compression does not change the hash, for example in fluorescence images."""
    places = np.random.default_rng(0).integers((0, 0, 20, 60), (130, 100, 30, 200), (30, 4, 4))
    originals = [dark_image(seed, (120, 160), *places[seed]) for seed in range(30)]
    copies = [as_jpeg(image, 50) for image in originals]
    assert groups_of([*originals, *copies]) == [(k, k + 30) for k in range(30)]


@pytest.mark.parametrize("spots", [0, 1, 3])
def test_dark_images_with_few_spots_differ(spots):
    """Their hashes are equal, and their thumbnails differ by less than a level on average."""
    places = np.random.default_rng(0).integers((0, 0, 7, 120), (300, 220, 8, 121), (40, spots, 4))
    originals = [dark_image(seed, (240, 320), *places[seed]) for seed in range(40)]
    assert groups_of([*originals, as_jpeg(originals[3], 80)]) == [(3, 40)]


@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels(channels):
    first, second = torch.randint(0, 256, (2, channels, 8, 9), dtype=torch.uint8)
    first, second = (image.repeat_interleave(9, 1).repeat_interleave(9, 2)
                     for image in (first, second))  # fmt: skip
    noisy = (first.int() + torch.randint(-3, 4, first.shape)).clamp(0, 255).byte()
    prints = prints_of(list(map(fingerprint, (first, second, noisy))))
    assert nearly_identical(prints).tolist() == [0, 1, 0]


def test_smooth_images_with_equal_hashes():
    levels = [Image.new("RGB", (60, 50), (level,) * 3) for level in (0, 20, 21, 200)]
    assert groups_of(levels) == [(1, 2)]


def test_search_finds_all_similar_hashes():
    """Compare the search by quarters with the components of all pairs."""
    rng = np.random.default_rng(0)
    bases = [int(rng.integers(1 << 62)) for _ in range(5)]
    hashes = [
        base ^ sum(1 << int(bit) for bit in rng.choice(64, rng.integers(0, 6), replace=False))
        for base in bases
        for _ in range(12)
    ]
    expected = list(range(len(hashes)))
    for i, j in itertools.combinations(range(len(hashes)), 2):
        if (hashes[i] ^ hashes[j]).bit_count() <= 3:
            low, high = sorted((expected[i], expected[j]))
            expected = [low if one == high else one for one in expected]
    assert 20 < len(set(expected)) < 55
    prints = prints_of([(True, one, 0) for one in hashes])
    assert nearly_identical(prints).tolist() == expected
    assert nearly_identical(prints[:0]).tolist() == []


@pytest.mark.parametrize("kind", ["fixed camera", "dark"])
def test_time_is_linear(kind):
    """All frames of a fixed camera share a hash, and dark images share most bits of theirs."""
    rng, count = np.random.default_rng(0), 8000
    prints = np.zeros(count, FINGERPRINT)
    prints["known"], prints["hash"] = True, 1 << 63
    prints["thumbnail"] = 60 * rng.integers(0, 2, (16, 16))
    prints["thumbnail"] += rng.integers(0, 2, (count, 16, 16), np.uint8)
    if kind == "dark":
        prints["hash"] = (1 << rng.integers(0, 60, (4, count))).sum(axis=0)
        prints["thumbnail"] = rng.integers(0, 100, (count, 16, 16))
    start = time.process_time()
    groups = nearly_identical(prints)
    assert time.process_time() - start < 2
    assert len(np.unique(groups)) == (1 if kind == "fixed camera" else count)


def test_groups_of_files(tmp_path):
    originals = [scene(seed) for seed in (7, 1, 3)]
    images = [originals[0], originals[1], as_jpeg(originals[0], 60), originals[2], originals[0]]
    files = [tmp_path / f"{number}.png" for number in range(6)]
    for file, image in zip(files, images, strict=False):
        image.save(file)
    files[5].write_bytes(b"damaged")
    prints = read_fingerprints(files, DEFAULT_OPTIONS)
    assert prints["known"].tolist() == [True] * 5 + [False]
    assert nearly_identical(prints).tolist() == [0, 1, 0, 3, 0, 5]
