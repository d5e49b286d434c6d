"""Almost valid pages of TIFF and PNG lead to pixels or a one-line DataError."""

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detlite.data.images.pixels import ImageOptions
from detlite.data.images.reading import check_image, count_pages, image_size, read_image
from tests.fuzz.inputs import mutated_bytes

pytest.importorskip("tifffile")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

OPTIONS = [ImageOptions(max_pixels=1_000_000), ImageOptions(1_000_000, channels=2)]
NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 255, 1000, 65535, 2**31, 2**32 - 1])


@pytest.fixture(params=[0, 1], ids=["of a path", "of bytes"])
def read(request):
    """Return a function that reads all pages of an image by its path or its bytes."""
    options = OPTIONS[request.param]

    def read(file: Path) -> None:
        source = file.read_bytes() if request.param else file
        image_size(file)
        for page in range(min(3, count_pages(source, options))):
            pixels = read_image(source, page=page, options=options)
            assert pixels.ndim == 3
            assert pixels.shape[1] * pixels.shape[2] <= options.max_pixels
        check_image(file, (4, 4), options)

    return read


# Tag, type and value of the entries of a page of a TIFF.
ENTRIES = [
    (254, 4, 0), (256, 4, 4), (257, 4, 4), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8),
    (277, 3, 1), (278, 4, 4), (279, 4, 16), (284, 3, 1),
]  # fmt: skip
PAGE, FIRST, PAGES = 2 + 12 * len(ENTRIES) + 4, 24, 3  # bytes of a page, and in front of the first
# Sides and places of tiles, predictors, palettes, extra samples, sample formats, other pages.
TAGS = st.sampled_from([266, 274, 317, 320, 322, 323, 324, 325, 338, 339, 34665, 330])
PLACES = st.integers(0, PAGES * PAGE // 2 - 2)  # of 16 bits


def tiff(changes: list[tuple[int, str, int]] = (), order: str = "<", pixels: bytes = b"") -> bytes:
    """Write pages of 4x4 pixels in gray, and then numbers of 16 or 32 bits ("H", "I") at places."""
    data = bytearray(b"II*\0" if order == "<" else b"MM\0*")
    data += struct.pack(f"{order}I", FIRST) + pixels.ljust(16, b"\0")
    for page in range(1, PAGES + 1):
        data += struct.pack(f"{order}H", len(ENTRIES))
        for tag, kind, value in ENTRIES:
            field = struct.pack(order + ("H" if kind == 3 else "I"), value)
            data += struct.pack(f"{order}HHI", tag, kind, 1) + field.ljust(4, b"\0")
        data += struct.pack(f"{order}I", FIRST + page * PAGE if page < PAGES else 0)
    for place, code, number in changes:
        limit = 0xFFFF if code == "H" else 0xFFFFFFFF
        struct.pack_into(order + code, data, FIRST + 2 * place, min(number, limit))
    return bytes(data)


def test_unchanged_file_is_valid(tmp_path):
    (tmp_path / "a.tif").write_bytes(tiff(order=">"))
    assert count_pages(tmp_path / "a.tif", OPTIONS[0]) == PAGES


@given(
    changes=st.lists(st.tuples(PLACES, st.sampled_from("HI"), NUMBERS | TAGS), max_size=6),
    order=st.sampled_from("<>"),
    pixels=st.sampled_from([bytes(16), zlib.compress(bytes(16)), b"\x80" + bytes(15)]),
)
# A thumbnail with a huge side, whose next page is the first one.
@example(
    changes=[(PAGE // 2 + 5, "I", 1), (PAGE // 2 + 11, "I", 2**32 - 1), (PAGE - 2, "I", FIRST)],
    order="<", pixels=b"",
)  # fmt: skip
def test_pages_of_a_tiff(changes, order, pixels, read, check):
    check(read, tiff(changes, order, pixels), ".tif")


def chunk(kind: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def header(width: int, height: int, depth: int = 8, color: int = 0, interlaced: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))


PIXELS = zlib.compress(b"\0\1\2\3\4" * 4)
CONTENTS = st.sampled_from([
    b"", PIXELS, bytes(4) + PIXELS, bytes(768), bytes(4), struct.pack(">II", 2, 0),
    struct.pack(">II", 2**31 - 1, 0), struct.pack(">IIIIIHHBB", 0, 4, 4, 0, 0, 1, 10, 0, 0),
    struct.pack(">IIIIIHHBB", 1, 2**31 - 1, 2**31 - 1, 0, 0, 1, 10, 2, 1),
    b"a\0\0" + zlib.compress(bytes(10_000_000)), b"Exif\0\0II*\0\x08\0\0\0\0\0",
]) | st.binary(max_size=30)  # fmt: skip
KINDS = [b"IDAT", b"acTL", b"fcTL", b"fdAT", b"PLTE", b"tRNS", b"zTXt", b"iCCP", b"iTXt", b"eXIf"]
CHUNKS = st.tuples(st.sampled_from(KINDS), CONTENTS)


@given(
    sides=st.tuples(NUMBERS, NUMBERS) | st.just((4, 4)),
    kind=st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 6), st.integers(0, 1)),
    before=st.lists(CHUNKS, max_size=5),
    after=st.lists(CHUNKS, max_size=5),
)
@example(
    sides=(4, 4), kind=(8, 0, 0), before=[(b"acTL", struct.pack(">II", 2**31 - 1, 0))], after=[]
)  # fmt: skip
def test_chunks_of_a_png(sides, kind, before, after, read, check):
    chunks = [*before, (b"IDAT", PIXELS), *after, (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + header(*sides, *kind) + b"".join(chunk(*c) for c in chunks)
    check(read, data, ".png")


@given(data=mutated_bytes(tiff()))
def test_bytes_of_a_tiff(data, read, check):
    check(read, data, ".tif")
