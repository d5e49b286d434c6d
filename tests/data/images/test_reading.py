"""Images of all types are read as uint8 RGB, and damaged ones raise errors."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from detlite.data.images import formats
from detlite.data.images.pixels import ImageOptions, pixels_to_tensor
from detlite.data.images.reading import check_image, image_size, read_image, read_reduced
from detlite.data.images.sources import Pixels
from detlite.files.errors import DataError, TooLargeError

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)
GRAY = RGB[:, :, 0]
AS_STORED = ImageOptions(exif_orientation=False)


def image_problem(*args):
    return check_image(*args)[0]


def save(tmp_path, image, name="image.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


PALETTE = Image.fromarray(RGB // 128 * 128).quantize(8)
# Images and the RGB that they are read as, gray or [H, W, 3].
CONVERSIONS = {
    "RGB": (Image.fromarray(RGB), RGB),
    "gray": (Image.fromarray(GRAY), GRAY),
    "black and white": (Image.fromarray(GRAY > 127), np.where(GRAY > 127, 255, 0)),
    "palette": (PALETTE, np.asarray(PALETTE.convert("RGB"))),
    "alpha, not blended": (Image.fromarray(np.dstack([RGB, 0 * GRAY])), RGB),
    "high byte of 16 bits": (Image.fromarray(GRAY.astype(np.uint16) * 256 + 77), GRAY),
}


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_all_types_are_read_as_rgb(tmp_path, kind):
    stored, expected = CONVERSIONS[kind]
    image = read_image(save(tmp_path, stored))
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    expected = expected if expected.ndim == 3 else np.dstack([expected] * 3)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_highest_8_of_12_bits_are_kept(tmp_path):
    values = GRAY.astype(np.uint16) * 16 + 7
    path = save(tmp_path, Image.fromarray(values))
    assert np.array_equal(
        read_image(path, options=ImageOptions(bits=12)).numpy(), np.stack([GRAY] * 3)
    )
    with pytest.warns(UserWarning, match=r"uses 12 bits only.*INPUT\.IMAGE_BITS 12"):
        read_image(path)
    with pytest.warns(UserWarning, match=r"above the 10 bits of INPUT\.IMAGE_BITS.*_BITS 12"):
        image = read_image(path, options=ImageOptions(bits=10))
    assert np.array_equal(image[0].numpy(), (values >> 2).clip(max=255))


def test_float_and_32_bit_images_need_a_range(tmp_path):
    depth = GRAY.astype(np.float32) / 100
    path = save(tmp_path, Image.fromarray(depth), "f.tiff")
    with pytest.raises(DataError, match=r"a float image with values from 0 to 2\.54.*VALUE_RANGE"):
        read_image(path)
    image = read_image(path, options=ImageOptions(channels=1, value_range=(1.0, 2.0)))
    assert np.array_equal(image[0].numpy(), ((depth - 1) * 256).clip(0, 255).astype(np.uint8))
    path = save(tmp_path, Image.fromarray(GRAY.astype(np.int32) * 1000), "i.tiff")
    with pytest.raises(DataError, match="a 32-bit image with values from 0 to 254000 has no 8-bit"):
        read_image(path)
    image = read_image(path, options=ImageOptions(value_range=(0, 256_000)))
    assert np.array_equal(image[0].numpy(), GRAY)
    depth[:] = np.nan  # missing depth is black
    depth[0] = np.inf
    image = read_image(save(tmp_path, Image.fromarray(depth), "f.tiff"),
                       options=ImageOptions(value_range=(0.5, 2.0)))  # fmt: skip
    assert (image[0, 0].min(), image[0, 1:].max()) == (255, 0)
    pixels = Pixels(np.ones((4, 5, 1), np.complex64))
    for values in ((), (0.0, 1.0)):
        with pytest.raises(DataError, match=r"a\.tif: has pixels of the type complex64"):
            pixels_to_tensor(pixels, ImageOptions(channels=1, value_range=values), "a.tif")


def with_orientation(tmp_path, orientation, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if name.endswith("webp") else {}
    return save(tmp_path, Image.fromarray(RGB), name, exif=exif, **options)


STORED = torch.from_numpy(RGB.transpose(2, 0, 1).copy())
# The sides where EXIF shows the stored first row and first column.
UPRIGHT = {
    1: STORED,  # top, left
    2: STORED.flip(2),  # top, right
    3: STORED.flip(1, 2),  # bottom, right
    4: STORED.flip(1),  # bottom, left
    5: STORED.transpose(1, 2),  # left, top
    6: STORED.transpose(1, 2).flip(2),  # right, top
    7: STORED.transpose(1, 2).flip(1, 2),  # right, bottom
    8: STORED.transpose(1, 2).flip(1),  # left, bottom
    99: STORED,  # no such orientation
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif", "a.jpg"])
def test_exif_orientation_is_applied(tmp_path, orientation, name):
    path = with_orientation(tmp_path, orientation, name)
    upright = UPRIGHT[orientation]
    size = tuple(upright.shape[1:])
    image = read_image(path, size)
    assert image.shape == upright.shape
    if name != "a.jpg":
        assert torch.equal(image, upright)
    assert torch.equal(read_image(path), image)
    assert image_size(path) == size
    assert image_problem(path, size) is None
    if size == (20, 12):
        assert "has 20x12" in str(image_problem(path, (12, 20)))


def test_exif_orientation_after_the_pixels_of_a_png(tmp_path):
    path = with_orientation(tmp_path, 8, "a.png")
    data = path.read_bytes()
    start = data.index(b"eXIf") - 4
    length = int.from_bytes(data[start : start + 4], "big")
    chunk = data[start : start + 12 + length]
    path.write_bytes(data.replace(chunk, b"").replace(b"\0\0\0\0IEND", chunk + b"\0\0\0\0IEND"))
    assert torch.equal(read_image(path, (20, 12)), UPRIGHT[8])
    assert image_problem(path, (20, 12)) is None


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_sizes_of_the_annotation_file(tmp_path, name):
    """Messages say which convention fits annotations of the other orientation."""
    path = with_orientation(tmp_path, 6, name)
    before = r"image is 12x20 .* has 20x12, its size before EXIF orientation 6 is applied\. If.*Fal"
    after = r"image is 20x12 .* has 12x20, its size after EXIF orientation 6 is applied\. If.*=True"
    swapped = r"image is 20x12 .* has 12x20: width and height are swapped"
    plain = save(tmp_path, Image.fromarray(RGB), f"plain_{name}")
    for file, size, options, message in (
        (path, (12, 20), ImageOptions(), before), (path, (20, 12), AS_STORED, after),
        (plain, (20, 12), ImageOptions(), swapped), (plain, (20, 13), AS_STORED, "has 13x20$"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_image(file, size, options)
        assert re.search(message, str(image_problem(file, size, options)))
    image = read_image(path, (12, 20), AS_STORED)
    assert name == "a.jpg" or torch.equal(image, STORED)
    assert image_problem(path, (12, 20), AS_STORED) is None
    cut_off = b"Exif\0\0MM\0*\0\0\0\x08\0\x05\0"
    path = save(tmp_path, Image.fromarray(RGB), "cut_off.png", exif=cut_off)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        assert torch.equal(read_image(path), STORED)


@pytest.mark.parametrize("extension", ["png", "jpg", "bmp", "gif", "tif", "webp"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_truncated_images_are_refused(tmp_path, extension, kept):
    path = save(tmp_path, Image.fromarray(RGB), f"a.{extension}")
    assert image_problem(path, (12, 20)) is None
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(DataError, match=rf"a.{extension}: the image is damaged or truncated"):
        read_image(path)
    assert "damaged or truncated" in str(image_problem(path, (12, 20)))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kept", [0.5, 0.8, 0.95])
def test_truncated_jpegs_with_an_end_marker(tmp_path, mode, kept):
    ramp = np.add.outer(np.arange(200), np.arange(160)).astype(np.uint8)
    path = save(tmp_path, Image.fromarray(ramp).convert(mode), "a.jpg")
    read_image(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)] + b"\xff\xd9")
    with pytest.raises(DataError, match=r"a.jpg: .*truncated \(data are missing\)"):
        read_image(path)
    gray = save(tmp_path, Image.new(mode, (40, 30), (128,) * len(mode)), "gray.jpg")
    gray.write_bytes(gray.read_bytes() + bytes(100))  # complete, and ends as if it were not
    assert read_image(gray, (30, 40))[0, 29, 39] == 128
    assert image_problem(gray, (30, 40)) is None


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: the image file does not exist"):
        read_image(tmp_path / "none.png")
    assert image_problem(tmp_path / "none.png", (1, 1)) == "the image file does not exist"
    assert image_problem(tmp_path, (1, 1)) == "Is a directory"
    assert "too long" in str(image_problem(tmp_path / ("n" * 5000), (1, 1)))
    os.mkfifo(tmp_path / "fifo.png")
    for path in (tmp_path / "fifo.png", Path("/dev/zero")):
        with pytest.raises(DataError, match=rf"{path}: not a regular file"):
            read_image(path)
        assert image_problem(path, (1, 1)) == "not a regular file"
    (tmp_path / "a.png").write_bytes(b"not an image")
    # Pillow raises a NotImplementedError for a DDS without a pixel format.
    header = struct.pack("<4I", 124, 0, 4, 4)
    (tmp_path / "a.dds").write_bytes(b"DDS " + header.ljust(124, b"\0"))
    for name, problem in (("none.png", "does not exist"), ("a.png", "is damaged or truncated"),
                          ("a.dds", "is damaged or truncated")):  # fmt: skip
        with pytest.raises(DataError, match=rf"{name}: the image (file )?{problem}"):
            (read_image if name == "a.dds" else image_size)(tmp_path / name)


def test_images_above_the_limit(tmp_path, monkeypatch):
    side = 13_400
    path = save(tmp_path, Image.new("1", (side, side)), "a.png")
    for problem in (image_problem(path, (side, side)), image_problem(path, (1, 1))):
        assert re.search(r"more than 178956970 pixels .* DATASETS\.MAX_PIXELS", str(problem))
    with pytest.raises(DataError, match=r"a.png: the image has more than"):
        read_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # low, like the next image
    path = save(tmp_path, Image.fromarray(RGB))
    assert "more than 150 pixels" in str(image_problem(path, (12, 20), ImageOptions(150)))
    assert image_problem(path, (12, 20), ImageOptions(240)) is None
    for source in (path, path.read_bytes()):
        with pytest.raises(TooLargeError, match="more than 239 pixels"):
            read_image(source, options=ImageOptions(max_pixels=239))
        assert read_image(source, options=ImageOptions(max_pixels=240)).shape == (3, 12, 20)


def test_bytes_are_read_like_files(tmp_path):
    for name in ("p.png", "p.jpg", "p.webp", "p.tiff"):
        path = save(tmp_path, Image.fromarray(RGB), name)
        assert torch.equal(read_image(path.read_bytes()), read_image(path))
    rotated = with_orientation(tmp_path, 6, "rotated.jpg")
    assert torch.equal(read_image(rotated.read_bytes()), read_image(rotated))
    with pytest.raises(DataError, match=r"bytes: the image is damaged or truncated"):
        read_image(path.read_bytes()[:-200])
    path = save(tmp_path, Image.fromarray(RGB), "p.ppm")
    assert read_image(path).shape == (3, 12, 20)
    for content in (path.read_bytes(), b""):
        with pytest.raises(DataError, match="bytes: none of JPEG, PNG, WEBP, BMP, TIFF, GIF"):
            read_image(content)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA"])
def test_large_images_are_converted_in_bands(tmp_path, mode, monkeypatch):
    path = save(tmp_path, Image.fromarray(RGB).convert(mode), "a.png")
    expected = read_image(path)
    monkeypatch.setattr("detlite.data.images.pillow._BAND_PIXELS", 5 * RGB.shape[1])
    assert torch.equal(read_image(path), expected)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_large_images_are_reduced_once(tmp_path, suffix, monkeypatch):
    y, x = np.mgrid[:640, :480]
    file = save(tmp_path, Image.fromarray(((x + y) // 5).astype(np.uint8)), f"a.{suffix}")
    monkeypatch.setenv("DETLITE_CACHE", str(tmp_path / "cache"))
    full = read_image(file).float()

    def reduced(least, size=(640, 480)):
        return read_reduced(file, size, ImageOptions(), least, 10_000_000)

    small = reduced((75, 50))
    assert small.shape == (3, 80, 60)
    mean = full.unflatten(2, (60, 8)).unflatten(1, (80, 8)).mean((2, 4))
    assert (small - mean).abs().max() < 3
    assert torch.equal(reduced((400, 300)), full.to(torch.uint8))
    with monkeypatch.context() as patch:
        patch.setattr("detlite.data.images.reading.read_image", None)
        assert torch.equal(reduced((75, 50)), small)
    (cached,) = (tmp_path / "cache/reduced").glob("??/[0-9a-f]*[0-9a-f]")
    for content in (b"", b"damaged", cached.read_bytes()[:-9]):
        cached.write_bytes(content)
        assert torch.equal(reduced((75, 50)), small)
    Image.fromarray(np.zeros((640, 480), np.uint8)).save(file)
    assert reduced((75, 50)).max() == 0
    with pytest.raises(DataError, match="is 480x640"):
        reduced((75, 50), (600, 480))


@pytest.mark.parametrize("suffix", ["tif", "gif"])
def test_a_file_of_many_pages_is_opened_once(tmp_path, monkeypatch, suffix):
    """Opening it for each page would take time like the square of their number."""
    opened, open_file = [], formats.open_file

    def record(path):
        opened.append(path)
        return open_file(path)

    monkeypatch.setattr(formats, "open_file", record)
    file = tmp_path / f"pages.{suffix}"

    def save(values):
        pages = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in values]
        pages[0].save(file, save_all=True, append_images=pages[1:])

    save(range(0, 200, 20))
    assert [int(read_image(file, page=page)[0, 0, 0]) for page in (3, 0, 9)] == [60, 0, 180]
    assert len(opened) == 1
    save(range(9, 209, 20))
    os.utime(file, ns=(0, 0))
    assert int(read_image(file, page=4)[0, 0, 0]) == 89
    with pytest.raises(DataError, match=r"pages\.\w+: the image has no page 11, only 10"):
        read_image(file, page=10)
    assert int(read_image(file, page=4)[0, 0, 0]) == 89
    assert len(opened) == 3
