"""Pictures of all kinds are read as uint8 RGB; damaged ones are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.data.errors import DataError
from detlite.data.images import image_problem, read_image

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)
GREY = RGB[:, :, 0]


def save(tmp_path, picture, name="picture.png", **options):
    picture.save(tmp_path / name, **options)
    return tmp_path / name


def test_rgb_is_read_exactly(tmp_path):
    image = read_image(save(tmp_path, Image.fromarray(RGB)))
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert np.array_equal(image.permute(1, 2, 0).numpy(), RGB)


def test_grey_is_expanded(tmp_path):
    image = read_image(save(tmp_path, Image.fromarray(GREY)))
    assert np.array_equal(image.numpy(), np.stack([GREY] * 3))


def test_black_and_white_is_expanded(tmp_path):
    image = read_image(save(tmp_path, Image.fromarray(GREY > 127)))
    assert np.array_equal(image[0].numpy(), np.where(GREY > 127, 255, 0))


def test_palette_is_resolved(tmp_path):
    palette = Image.fromarray(RGB // 128 * 128).quantize(8)
    image = read_image(save(tmp_path, palette))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(palette.convert("RGB")))


def test_alpha_is_dropped_without_blending(tmp_path):
    alpha = np.zeros((12, 20, 1), np.uint8)
    image = read_image(save(tmp_path, Image.fromarray(np.concatenate([RGB, alpha], axis=2))))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), RGB)


def test_of_16_bits_the_high_byte_is_kept(tmp_path):
    values = GREY.astype(np.uint16) * 256 + 77
    image = read_image(save(tmp_path, Image.fromarray(values)))
    assert np.array_equal(image.numpy(), np.stack([GREY] * 3))


def test_float_and_32_bit_pictures_are_refused(tmp_path):
    with pytest.raises(DataError, match="float pictures have no 8-bit form"):
        read_image(save(tmp_path, Image.fromarray(GREY.astype(np.float32)), "f.tiff"))
    with pytest.raises(DataError, match="32-bit pictures have no 8-bit form"):
        read_image(save(tmp_path, Image.fromarray(GREY.astype(np.int32) * 1000), "i.tiff"))


def test_orientation_follows_the_stated_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to view
    path = save(tmp_path, Image.fromarray(RGB), exif=exif)
    stored = torch.from_numpy(RGB.transpose(2, 0, 1).copy())
    assert torch.equal(read_image(path), stored)
    assert torch.equal(read_image(path, (12, 20)), stored)
    assert torch.equal(read_image(path, (20, 12)), stored.rot90(-1, (1, 2)))
    assert image_problem(path, (12, 20)) is None
    assert image_problem(path, (20, 12)) is None


def test_size_that_does_not_match(tmp_path):
    path = save(tmp_path, Image.fromarray(RGB))
    with pytest.raises(DataError, match=r"picture.png: the picture is 20x12 .* states 12x20"):
        read_image(path, (20, 12))
    assert "states 12x20" in str(image_problem(path, (20, 12)))


@pytest.mark.parametrize("extension", ["png", "jpg", "bmp", "gif", "tif", "webp"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_truncated_pictures_are_refused(tmp_path, extension, kept):
    path = save(tmp_path, Image.fromarray(RGB), f"a.{extension}")
    assert image_problem(path, (12, 20)) is None
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DataError, match=rf"a.{extension}: the picture is damaged or truncated"):
        read_image(path)
    assert "damaged or truncated" in str(image_problem(path, (12, 20)))


def test_data_after_the_end_is_no_damage(tmp_path):
    path = save(tmp_path, Image.fromarray(RGB), "a.jpg")
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    assert image_problem(path, (12, 20)) is None


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: no such picture file"):
        read_image(tmp_path / "none.png")
    assert image_problem(tmp_path / "none.png", (1, 1)) == "no such picture file"
    assert image_problem(tmp_path, (1, 1)) is not None
