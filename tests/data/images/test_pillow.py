"""Only decoders of a list open images, and tiles of a TIFF are not larger than needed."""

import re
import struct
import zlib

import pytest

from detlite.data import DataError
from detlite.data.images import read_image
from detlite.data.images.pillow import FILE_FORMATS, pillow_suffixes

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 96 96\n%%EndComments\n{} loop\n%%EOF\n"


def test_postscript_starts_no_program(tmp_path, monkeypatch):
    """Pillow would start Ghostscript, which runs the program in the file."""
    started = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\necho 10.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for name in ("photo.png", "photo.eps"):
        (tmp_path / name).write_bytes(EPS)
        with pytest.raises(DataError, match=f"{name}: .* of a format that is not read"):
            read_image(tmp_path / name)
    with pytest.raises(DataError, match="none of JPEG"):
        read_image(EPS)
    assert not started.exists()


def test_nothing_else_opens_images_with_pillow(repo_root):
    files = [
        file.relative_to(repo_root).as_posix()
        for file in (repo_root / "detlite").rglob("*.py")
        if re.search(r"\bImage\s*\.\s*open\b", file.read_text())
    ]
    assert files == ["detlite/data/images/pillow.py"]


def test_formats_and_suffixes():
    assert {".jpg", ".jpeg", ".png", ".tif", ".webp", ".bmp", ".gif", ".pgm"} <= pillow_suffixes()
    assert pillow_suffixes().isdisjoint({".eps", ".ps", ".wmf", ".fli", ".mpg", ".h5", ".pdf"})
    assert {"EPS", "WMF"}.isdisjoint(FILE_FORMATS)


def tiled(side, tile, samples=3):
    """Return a compressed TIFF of one tile."""
    packer, data = zlib.compressobj(9), b""
    for _ in range(tile):
        data += packer.compress(bytes(tile * samples))
    data += packer.flush()
    tags = [(256, 4, 1, side), (257, 4, 1, side), (258, 3, samples, 134), (259, 3, 1, 8),
            (262, 3, 1, 2), (277, 3, 1, samples), (322, 4, 1, tile), (323, 4, 1, tile),
            (324, 4, 1, 134 + 2 * samples), (325, 4, 1, len(data))]  # fmt: skip
    ifd = b"".join(
        struct.pack("<HHI", tag, kind, count)
        + (struct.pack("<HH", value, 0) if kind == 3 and count == 1 else struct.pack("<I", value))
        for tag, kind, count, value in tags
    )
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + ifd + bytes(4)
    return head + struct.pack(f"<{samples}H", *[8] * samples) + data


@pytest.mark.parametrize("samples", [3, 5])  # read by Pillow and by tifffile
def test_tiles_that_are_larger_than_their_image(samples):
    if samples == 5:
        pytest.importorskip("tifffile", reason="needs detlite[tiff]")
        pytest.importorskip("imagecodecs", reason="decodes the tiles")
    assert read_image(tiled(100, 512)).shape == (3, 100, 100)  # a usual tile
    with pytest.raises(DataError, match="tiles of 5000x5000 are larger than 100x100"):
        read_image(tiled(100, 5000, samples))
