"""Almost valid pages of TIFF and PNG lead to pixels or a one-line DataError."""

import struct
import zlib
from pathlib import Path
from typing import Any

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


# Entries of a TIFF's page: tag -> (type, values), of an image of 4x4 in gray.
ENTRIES: dict[int, tuple[int, list[int]]] = {
    254: (4, [0]), 256: (4, [4]), 257: (4, [4]), 258: (3, [8]), 259: (3, [1]), 262: (3, [1]),
    273: (4, [8]), 277: (3, [1]), 278: (4, [4]), 279: (4, [16]), 284: (3, [1]),
}  # fmt: skip
# Also the sides and places of tiles, predictors, palettes, extra samples and sample formats.
TAGS = st.sampled_from([*ENTRIES, 266, 274, 317, 320, 322, 323, 324, 325, 338, 339, 34665, 330])
TYPES = st.integers(0, 13)
CHANGES = st.dictionaries(
    TAGS, st.none() | st.tuples(TYPES, st.lists(NUMBERS, min_size=1, max_size=4)), max_size=4
)


def tiff(pages: list[tuple[dict[int, Any], int | None]], order: str, pixels: bytes) -> bytes:
    """Write pages of (changes of entries, next page or None for the following one)."""
    places, blocks, at = [], [], 8 + len(pixels)
    for changes, _ in pages:
        rows = {tag: row for tag, row in (ENTRIES | changes).items() if row is not None}
        extra, entries = b"", b""
        start = at + 2 + 12 * len(rows) + 4
        for tag, (kind, values) in sorted(rows.items()):
            code = "H" if kind == 3 else "I"
            limit = 0xFFFF if kind == 3 else 0xFFFFFFFF
            packed = struct.pack(f"{order}{len(values)}{code}", *(min(v, limit) for v in values))
            field = packed.ljust(4, b"\0")
            if len(packed) > 4:
                field = struct.pack(f"{order}I", start + len(extra))
                extra += packed
            entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + field
        places.append(at)
        blocks.append((struct.pack(f"{order}H", len(rows)) + entries, extra))
        at += len(blocks[-1][0]) + 4 + len(extra)
    data = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", places[0]) + pixels
    for number, ((_, following), (block, extra)) in enumerate(zip(pages, blocks, strict=True)):
        following = number + 1 if following is None else following
        place = places[following] if following < len(places) else 0
        data += block + struct.pack(f"{order}I", place) + extra
    return data


@given(
    pages=st.lists(st.tuples(CHANGES, st.none() | st.integers(0, 5)), min_size=1, max_size=5),
    order=st.sampled_from("<>"),
    pixels=st.sampled_from([bytes(16), zlib.compress(bytes(16)), b"\x80" + bytes(15)]),
)
@example(pages=[({}, None), ({254: (4, [1]), 256: (4, [2**32 - 1])}, 0)], order="<", pixels=b"")
def test_pages_of_a_tiff(pages, order, pixels, read, check):
    check(read, tiff(pages, order, pixels), ".tif")


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


@given(data=mutated_bytes(tiff([({}, None), ({}, None)], "<", bytes(16))))
def test_bytes_of_a_tiff(data, read, check):
    check(read, data, ".tif")
