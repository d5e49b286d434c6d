"""Channels, pages and formats of image files: all are used, or an error names what is not."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, features

from detlite.data.images.formats import IMAGE_READERS, image_suffixes
from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import check_image, count_pages, image_size, read_image
from detlite.files.errors import DataError, TooLargeError

tifffile = pytest.importorskip("tifffile")
RNG = np.random.default_rng(0)
BANDS = RNG.integers(0, 256, (12, 20, 8), dtype=np.uint8)


def image_problem(*args):
    return check_image(*args)[0]


def write(path, array, **options):
    tifffile.imwrite(path, array, **{"photometric": "minisblack", **options})
    return path


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("count", [2, 4, 5, 8])
def test_all_bands_of_a_tiff_are_read(tmp_path, count, planar):
    bands = BANDS[:, :, :count]
    stored = bands if planar == "contig" else bands.transpose(2, 0, 1)
    path = write(tmp_path / "a.tif", stored, planarconfig=planar)
    options = ImageOptions(channels=count)
    for source in (path, path.read_bytes()):
        image = read_image(source, (12, 20), options)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), bands)
    assert image_size(path) == (12, 20)
    assert image_problem(path, (12, 20), options) is None
    packed = write(tmp_path / "b.tif", bands, planarconfig="contig", compression="lzw")
    assert np.array_equal(read_image(packed, None, options).permute(1, 2, 0).numpy(), bands)
    pages = write(tmp_path / "c.tif", bands.transpose(2, 0, 1))
    assert np.array_equal(read_image(pages, None, options).permute(1, 2, 0).numpy(), bands)
    assert (count_pages(pages), count_pages(pages, options)) == (count, 1)
    for channels in (1, 3, count + 1):
        message = rf"has {count} channels, but the model expects {channels}\. .*{count} values in I"
        with pytest.raises(DataError, match=message):
            read_image(path, options=ImageOptions(channels=channels))
    assert f"{count} channels" in str(image_problem(path, (12, 20)))


def test_alpha_is_a_channel_only_for_models_with_four_channels(tmp_path):
    Image.fromarray(BANDS[:, :, :4], "RGBA").save(tmp_path / "a.png")
    write(tmp_path / "a.tif", BANDS[:, :, :4], photometric="rgb", extrasamples=["unassalpha"])
    for name in ("a.png", "a.tif"):
        three, four = (read_image(tmp_path / name, None, ImageOptions(channels=k)) for k in (3, 4))
        assert np.array_equal(four.permute(1, 2, 0).numpy(), BANDS[:, :, :4])
        assert torch.equal(three, four[:3])
        assert image_problem(tmp_path / name, (12, 20), ImageOptions(channels=4)) is None


def test_models_with_one_channel_read_gray_images(tmp_path):
    gray, options = BANDS[:, :, 0], ImageOptions(channels=1)
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(np.stack([gray] * 3, axis=2)).save(tmp_path / "stacked.png")
    for name in ("gray.png", "stacked.png"):
        assert np.array_equal(read_image(tmp_path / name, options=options).numpy(), gray[None])
        assert image_problem(tmp_path / name, (12, 20), options) is None
    Image.fromarray(BANDS[:, :, :3]).save(tmp_path / "color.png")
    assert "3 channels, but" in str(image_problem(tmp_path / "color.png", (12, 20), options))


def test_16_bits_of_several_channels(tmp_path):
    values = RNG.integers(0, 4096, (12, 20, 3)).astype(np.uint16)
    write_16_bit_png(tmp_path / "a.png", values)
    write(tmp_path / "a.tif", values, photometric="rgb")
    for name in ("a.png", "a.tif"):
        image = read_image(tmp_path / name, options=ImageOptions(bits=12))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), values >> 4)
        ranges = (0.0, 1024.0, 1000.0, 3048.0, 0.0, 4096.0)
        image = read_image(tmp_path / name, options=ImageOptions(value_range=ranges))
        assert np.array_equal(image[1].numpy(), ((values[..., 1] - 1000.0) / 8).clip(0, 255) // 1)


def write_16_bit_png(path, values):
    """Write RGB with 16 bits, which Pillow does not."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


@pytest.mark.parametrize("name", ["a.tif", "float.tif", "a.gif", "a.png", "a.webp", "a.avif"])
def test_every_page_is_read_by_number(tmp_path, name):
    pages = [np.full((12, 20), 40 * k, np.uint8) for k in range(1, 4)]
    first, *rest = [Image.fromarray(page) for page in pages]
    options, lossy = ImageOptions(), 2 * (name == "a.avif")
    if name == "float.tif":
        write(tmp_path / name, np.stack(pages).astype(np.float64))
        options = ImageOptions(value_range=(0, 256))
    else:
        lossless = {"a.webp": {"lossless": True}, "a.avif": {"quality": 100}}.get(name, {})
        if name == "a.avif" and not features.check("avif"):
            pytest.skip("Pillow without AVIF")
        first.save(tmp_path / name, save_all=True, append_images=rest, **lossless)
    sources = [tmp_path / name, (tmp_path / name).read_bytes()]
    for source in sources[:1] if name == "a.avif" else sources:
        assert count_pages(source, options) == 3
        for number, page in enumerate(pages):
            image = read_image(source, options=options, page=number)
            assert np.abs(image.numpy() - np.stack([page] * 3).astype(int)).max() <= lossy
        with pytest.raises(DataError, match=r"has 3 pages, but must have one\. Save each"):
            read_image(source, options=options)
        with pytest.raises(DataError, match="the image has no page 4, only 3"):
            read_image(source, options=options, page=3)
    assert "has 3 pages" in str(image_problem(tmp_path / name, (12, 20), options))


@pytest.mark.parametrize("channels", [3, 5])  # read by Pillow, and by tifffile
def test_pixels_of_every_page_are_limited(tmp_path, channels):
    """Also where the first page or a thumbnail before it is small."""
    path, big = tmp_path / "a.tif", np.zeros((60, 80, channels), np.uint8)
    kind = "rgb" if channels == 3 else "minisblack"
    with tifffile.TiffWriter(path) as writer:
        for page, thumbnail in ((BANDS[:, :, :channels], 1), (BANDS[:, :, :channels], 0), (big, 0)):
            writer.write(page.copy(), photometric=kind, planarconfig="contig",
                         subfiletype=thumbnail, metadata=None)  # fmt: skip
    assert count_pages(path) == 2
    for source in (path, path.read_bytes()):
        for limit in (12 * 20 - 1, 12 * 20):
            with pytest.raises(TooLargeError, match=f"the image has more than {limit} pixels"):
                read_image(source, page=1, options=ImageOptions(limit, channels=channels))
        read_image(source, page=1, options=ImageOptions(60 * 80, channels=channels))


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (1 << 30, TooLargeError, "the image has 1073741824 pages, more than"),
        (250, DataError, "damaged: its header announces 250 frames"),
    ],
)
def test_the_number_of_pages_is_limited(tmp_path, count, error, message):
    """The header of an animated PNG may state any number of frames."""
    frame = Image.fromarray(BANDS[:, :, :3])
    frame.save(tmp_path / "a.png", save_all=True, append_images=[frame.rotate(180)])
    data = bytearray((tmp_path / "a.png").read_bytes())
    start = data.index(b"acTL")
    data[start + 4 : start + 8] = struct.pack(">I", count)
    data[start + 12 : start + 16] = struct.pack(">I", zlib.crc32(data[start : start + 12]))
    (tmp_path / "a.png").write_bytes(data)
    for source in (tmp_path / "a.png", bytes(data)):
        with pytest.raises(error, match=message):
            count_pages(source)


def test_pages_of_a_tiff_are_counted_up_to_the_limit():
    page, stream = Image.fromarray(BANDS[:, :, 0]), io.BytesIO()
    page.save(stream, "TIFF", save_all=True, append_images=[page] * 300)
    with pytest.raises(TooLargeError, match="the image has 257 pages, more than 256"):
        count_pages(stream.getvalue())


def test_a_format_is_added_in_five_lines(tmp_path):
    values = RNG.integers(0, 4096, (12, 20)).astype(np.uint16)

    @IMAGE_READERS.register(".dcm")
    def read_dicom(file):
        return values

    try:
        (tmp_path / "a.DCM").write_bytes(bytes(128) + b"DICM" + bytes(200))
        image = read_image(tmp_path / "a.DCM", (12, 20), ImageOptions(bits=12))
        assert np.array_equal(image[0].numpy(), values >> 4)
        assert image_size(tmp_path / "a.DCM") == (12, 20)
        assert ".dcm" in image_suffixes()
        IMAGE_READERS.register(".text")(lambda file: np.array(["no", "numbers"]))
        IMAGE_READERS.register(".codec")(lambda file: {}["no magic"])
        for suffix, message in (("text", r"arrays \[H, W\] or \[H, W, C\] of numbers"),
                                ("codec", r"a\.codec: .*KeyError: 'no magic'")):  # fmt: skip
            (tmp_path / f"a.{suffix}").write_text("-")
            with pytest.raises(DataError, match=message):
                read_image(tmp_path / f"a.{suffix}")
    finally:
        for suffix in (".dcm", ".text", ".codec"):
            IMAGE_READERS._builders.pop(suffix, None)
    with pytest.raises(DataError, match=r"a\.DCM: .* format that is not read, such as .*DICOM"):
        read_image(tmp_path / "a.DCM")


def test_jpegs_are_read_at_a_reduced_size(tmp_path):
    y, x = np.mgrid[:640, :480]
    Image.fromarray(((x + y) // 5).astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    full = read_image(tmp_path / "a.jpg", (640, 480))
    small = read_image(tmp_path / "a.jpg", (640, 480), min_size=(150, 110))
    assert small.shape == (3, 160, 120)
    mean = full.float().unflatten(2, (120, 4)).unflatten(1, (160, 4)).mean((2, 4))
    assert (small - mean).abs().max() < 3
    assert read_image(tmp_path / "a.jpg", min_size=(641, 480)).shape == (3, 640, 480)
    with pytest.raises(DataError, match="the image is 480x640"):
        read_image(tmp_path / "a.jpg", (160, 120), min_size=(150, 110))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(tmp_path / "a.jpg").save(tmp_path / "b.jpg", exif=exif)
    rotated = read_image(tmp_path / "b.jpg", (480, 640), min_size=(110, 150))
    assert rotated.shape == (3, 120, 160)


def test_damaged_tiffs_of_tifffile(tmp_path):
    """Read a file without pages, and a page with more values than fit in memory."""
    (tmp_path / "a.tif").write_bytes(b"II*\0\x08\0\0\0" + bytes(20))
    with pytest.raises(DataError, match=r"a\.tif: the image is damaged or truncated"):
        read_image(tmp_path / "a.tif")
    tifffile.imwrite(
        tmp_path / "b.tif", shape=(60, 80, 5), dtype="uint16", photometric="minisblack"
    )
    with tifffile.TiffFile(tmp_path / "b.tif", mode="r+b") as file:
        file.pages[0].tags["SamplesPerPixel"].overwrite(65535)
    with pytest.raises(DataError, match=r"b\.tif: "):
        read_image(tmp_path / "b.tif")
    tifffile.imwrite(tmp_path / "c.tif", np.zeros((60, 80, 3), np.uint8), photometric="rgb")
    with tifffile.TiffFile(tmp_path / "c.tif", mode="r+b") as file:
        file.pages[0].tags["BitsPerSample"].overwrite((2048, 2048, 2048))
    with pytest.raises(DataError, match=r"c\.tif: .*a page without pixels"):
        read_image(tmp_path / "c.tif")
    pixels = np.zeros((6, 8, 5), np.uint16)
    tifffile.imwrite(tmp_path / "d.tif", pixels, photometric="minisblack", planarconfig="contig")
    with tifffile.TiffFile(tmp_path / "d.tif", mode="r+b") as opened:
        opened.pages[0].tags["ImageWidth"].overwrite((8,) * 1000)
    with pytest.raises(DataError, match="with several sizes"):
        read_image(tmp_path / "d.tif")
    stream, page = io.BytesIO(), Image.new("RGB", (8, 6))
    page.save(stream, "TIFF", save_all=True, append_images=[page])
    data = bytearray(stream.getvalue())
    first = struct.unpack_from("<I", data, 4)[0]
    count = struct.unpack_from("<H", data, first)[0]
    second = struct.unpack_from("<I", data, first + 2 + 12 * count)[0]
    struct.pack_into("<H", data, second + 2, 3)  # in place of 256, ImageWidth of the second page
    with pytest.raises(DataError, match="damaged or truncated"):
        read_image(bytes(data))


def test_a_circle_of_pages(tmp_path):
    file = tmp_path / "a.tif"
    pages = np.zeros((150, 2, 3, 5), np.uint16)
    tifffile.imwrite(file, pages, photometric="minisblack", planarconfig="contig", metadata=None)
    with tifffile.TiffFile(file) as opened:
        first, last = opened.pages[0].offset, opened.pages[149].offset
    data = bytearray(file.read_bytes())
    count = struct.unpack_from("<H", data, last)[0]
    struct.pack_into("<I", data, last + 2 + 12 * count, first)
    file.write_bytes(data)
    for source in (file, bytes(data)):
        with pytest.raises(DataError, match="damaged or truncated"):
            read_image(source)
