"""Channels and values of images decide how they are read."""

import numpy as np
import pytest
from PIL import Image

from detlite.apps.autoconfig.image_values import measure_values
from detlite.data.images.pixels import DEFAULT_OPTIONS, ImageOptions
from detlite.data.images.reading import read_image

RNG = np.random.default_rng(0)


def save_all(tmp_path, arrays):
    files = [tmp_path / f"{number}.png" for number in range(len(arrays))]
    for file, array in zip(files, arrays, strict=True):
        Image.fromarray(array).save(file)
    return files


def test_common_images_need_nothing(tmp_path):
    color = RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    values = measure_values(save_all(tmp_path, [color, color[..., 0]]), DEFAULT_OPTIONS)
    assert values.options == DEFAULT_OPTIONS
    assert not values.reason
    assert len(values.mean) == 3


@pytest.mark.parametrize(("highest", "bits"), [(300, 9), (5000, 13), (20_000, 15), (65_535, 16)])
def test_bits_are_the_fewest_that_represent_all_values(tmp_path, highest, bits):
    images = [RNG.integers(0, highest + 1, (60, 80)).astype(np.uint16) for _ in range(3)]
    images[0][0, 0] = highest
    values = measure_values(save_all(tmp_path, images), DEFAULT_OPTIONS)
    assert (values.options.bits, values.options.value_range) == (bits, ())
    assert f"need {bits} bits" in values.reason


def test_a_small_part_of_the_range_becomes_black_to_white(tmp_path):
    images = [RNG.integers(2000, 2200, (60, 80)).astype(np.uint16) for _ in range(3)]
    images[1][5, 5] = 60_000  # a hot pixel
    files = save_all(tmp_path, images)
    options = measure_values(files, DEFAULT_OPTIONS).options
    assert options.value_range == pytest.approx((2000, 2199), abs=2)
    assert read_image(files[0], options=options).float().std() > 60


def test_floats_have_one_range_per_channel(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    scale, offset = np.array([1.0, 50.0, 0.01, 1.0]), np.array([0, 100, -1, 0])
    images = [(RNG.random((60, 80, 4)) * scale + offset).astype(np.float32) for _ in range(2)]
    images[0][3, 3, 1] = np.nan
    files = [tmp_path / "0.tif", tmp_path / "1.tif"]
    for file, array in zip(files, images, strict=True):
        tifffile.imwrite(file, array, photometric="minisblack", planarconfig="contig")
    values = measure_values(files, DEFAULT_OPTIONS)
    low, high = np.array(values.options.value_range).reshape(4, 2).T
    assert low == pytest.approx(offset, abs=0.1)
    assert high == pytest.approx(offset + scale, abs=0.1)
    assert values.mean == pytest.approx([0.5] * 4, abs=0.02)
    assert values.std == pytest.approx([12**-0.5] * 4, abs=0.02)
    assert read_image(files[0], options=values.options).shape == (4, 60, 80)


def test_given_options_are_kept_and_unreadable_images_skipped(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    unreadable = [tmp_path / "bad.png", tmp_path / "none.png"]
    assert measure_values(unreadable, DEFAULT_OPTIONS).options == DEFAULT_OPTIONS
    files = save_all(tmp_path, [RNG.integers(0, 4096, (60, 80)).astype(np.uint16)])
    for options in (ImageOptions(bits=12), ImageOptions(value_range=(0, 1000))):
        assert measure_values(files, options).options == options
